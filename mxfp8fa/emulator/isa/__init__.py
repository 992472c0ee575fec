"""The instruction set: one definition per instruction form, by family. Importing this package fills the registry."""
