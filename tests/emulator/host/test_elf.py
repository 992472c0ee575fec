"""ELF symbol tables, against objects that LLVM writes."""

import pytest

from mxfp8fa.emulator.host.elf import MACHINES, read_symbols

llvm = pytest.importorskip("llvmlite.binding")


@pytest.fixture(scope="module")
def emitted():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(
        """
        declare i32 @needed_one(i8*)
        declare void @needed_two()
        @data_here = global i32 7
        @data_elsewhere = external global i32
        define i32 @here(i8* %p) {
          %a = call i32 @needed_one(i8* %p)
          call void @needed_two()
          %b = load i32, i32* @data_elsewhere
          %c = add i32 %a, %b
          ret i32 %c
        }
        define internal void @static_here() { ret void }
        """
    )
    return llvm.Target.from_default_triple().create_target_machine().emit_object(module)


def test_defined_and_undefined_names(emitted):
    symbols = read_symbols(emitted)
    assert {"here", "data_here", "static_here"} <= symbols.defined
    assert symbols.undefined - {"_GLOBAL_OFFSET_TABLE_"} == {"needed_one", "needed_two", "data_elsewhere"}
    assert not symbols.defined & symbols.undefined


def test_machine_is_this_one(emitted):
    import platform

    assert platform.machine().lower() in MACHINES[read_symbols(emitted).machine]


OTHERS = [b"", b"\x7fELF\x01\x01" + bytes(60), b"\x7fELF\x02\x02" + bytes(60), b"MZ" + bytes(64)]


@pytest.mark.parametrize("data", OTHERS)
def test_other_files_are_refused(data):
    with pytest.raises(ValueError, match="not a little-endian 64-bit ELF object"):
        read_symbols(data)


def test_stripped_object_is_refused(emitted):
    data = bytearray(emitted)
    data[60:62] = b"\0\0"  # e_shnum: no sections, hence no symbol table
    with pytest.raises(ValueError, match="no symbol table"):
        read_symbols(bytes(data))
