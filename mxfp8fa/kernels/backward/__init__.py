"""MXFP8 attention, backward: preprocess, main, postprocess."""
