"""Which execution unit an SASS instruction occupies.

The assignment follows public microbenchmarks of Hopper and Blackwell and NVIDIA's table of arithmetic throughput (CUDA
C++ Programming Guide); how sure each one is, and the rates, stand in `timing.rates`. Every instruction also takes one
issue slot of its scheduler.
"""

from __future__ import annotations

from enum import Enum

from mxfp8fa.timing.sass import Instruction


class Unit(Enum):
    """An execution unit, as the tables of `mxfp8fa inspect` call it."""

    FMA = "FMA"
    ALU = "ALU"
    MUFU = "MUFU"
    CONVERT = "convert"
    LSU = "LSU"
    TMEM = "TMEM"
    TENSOR = "tensor"
    UNIFORM = "uniform"
    SYNC = "sync"
    CONTROL = "control"


_MNEMONICS = {
    Unit.FMA: "FFMA FMUL FADD FFMA2 FMUL2 FADD2 IMAD HFMA2 HADD2 HMUL2 FSWZADD FFMA32I IDP FHFMA FHADD FHMUL",
    Unit.ALU: (
        "IADD3 IADD VIADD LOP3 LOP SHF SHL SHR PRMT SEL FSEL ISETP FSETP FMNMX FMNMX3 VIMNMX VIMNMX3 VIADDMNMX IABS LEA "
        "BMSK SGXT PLOP3 P2R R2P MOV MOV32I HMNMX2 FCHK ICMP HSETP2 HSET2 FSET VHMNMX BREV CSEL SETP"
    ),
    Unit.MUFU: "MUFU POPC FLO",
    Unit.CONVERT: "F2FP F2IP F2F F2I I2F I2FP I2IP FRND",
    Unit.LSU: (
        "LDS STS LDSM STSM LDG STG LDL STL LD ST ATOM ATOMG ATOMS RED REDG SHFL LDGSTS REDUX CREDUX MATCH LDC STAS REDAS CCTL QSPC"
    ),
    Unit.TMEM: "LDTM STTM LDT STT",
    Unit.TENSOR: (
        "UTCHMMA UTCQMMA UTCIMMA UTCOMMA UTCCP UTCBAR UTCSHIFT UTCATOMSWS UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL UBLKCP "
        "UBLKRED UBLKPF UTMACMDFLUSH"
    ),
    Unit.SYNC: (
        "SYNCS BAR MEMBAR FENCE DEPBAR WARPSYNC ELECT VOTE VOTEU NANOSLEEP ERRBAR UCGABAR_ARV UCGABAR_WAIT ACQBULK PREEXIT "
        "CGAERRBAR USETMAXREG UVIRTCOUNT"
    ),
    Unit.CONTROL: (
        "BRA BRX JMP JMX EXIT CALL RET BSSY BSYNC BREAK NOP YIELD BPT KILL S2R S2UR CS2R CS2UR B2R R2B BMOV RPCMOV LEPC "
        "GETLMEMBASE PMTRIG SETCTAID"
    ),
}
_UNIT_OF = {name: unit for unit, names in _MNEMONICS.items() for name in names.split()}


def unit_of(instruction: Instruction) -> Unit:
    """The unit that executes an instruction; whatever else starts with U or R2UR works on uniform registers.

    Raises:
        ValueError: an opcode that is in no list.
    """
    mnemonic = instruction.mnemonic
    if mnemonic in _UNIT_OF:
        return _UNIT_OF[mnemonic]
    if mnemonic[0] == "U" or mnemonic in ("R2UR", "LDCU"):
        return Unit.UNIFORM
    raise ValueError(f"{instruction.opcode} at {instruction.address:#x}: its execution unit is not known (timing/units.py)")
