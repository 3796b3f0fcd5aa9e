"""Words of drivers about Xids, and what they make of a number: contained, recovered, to be reset.

Sources are the vendor's open driver 595.45.04 (df1c9a3) and public reports, named in each row; the words of the GPU's
firmware are not public. docs/reference/xids.md shows the table.
"""

from typing import Final

import msgspec

from mpsguard.guard.triage.catalog import Level


class Qualifier(msgspec.Struct, frozen=True):
    """Words of a driver about an Xid, and what they make of it."""

    numbers: tuple[int, ...]
    says: str
    """The words as a reader knows them."""
    words: str
    """A regular expression for the whole message, without regard to case."""
    level: Level
    means: str
    source: str
    proven: bool = True
    closes: bool = False


NVLINK5: Final = tuple(range(144, 151))
_OPEN: Final = "open driver 595.45.04"
_DECODE: Final = "vendor's Xid catalog, sheet of Xids 144 to 150"
_GPU_C: Final = f"{_OPEN}, gpu.c"
_CONTAINMENT_C: Final = f"{_OPEN}, kern_gpu_error_cont_ga100.c and _gb100.c"
_CONTAINMENT: Final = (
    r"(?:Unc|C)ontained: [a-z0-9 ]{1,40}(?: \([0-9a-fx, ]{1,60}\))?\.(?: physAddr: 0x[0-9a-f]+)? RST: "
)


def _action(number: str, name: str) -> str:
    """Return the words of a change to a recovery action: its number, its name, or both."""
    before = r"(?: from (?:0x[0-9a-f]+ ?)?\(?[a-z0-9 ]*\)?)?"
    return rf"GPU recovery action changed{before} to (?:0x{number}|(?:0x{number} )?\((?:{name})\)|(?:{name}))\.?"


def _link(severity: str) -> str:
    return rf"[A-Z0-9_/]+ +{severity} +XC\d +i\d+ +Link +-?\d+ +\([0-9a-fx ]{{1,120}}\)?"


QUALIFIERS: Final = (
    Qualifier(
        (154,),
        "recovery action changed to 0x0 (None)",
        _action("0", "None"),
        Level.INFORMATIONAL,
        "nothing needs to be done any more: what stood for this GPU is over, unless it is to be replaced",
        f"{_GPU_C}; NVIDIA/NVSentinel, csv_test.go",
        closes=True,
    ),
    Qualifier(
        (154,),
        "... to 0x3 (Drain P2P)",
        _action("3", "Drain P2P"),
        Level.INFORMATIONAL,
        "work that uses other GPUs is to end; the rest goes on",
        _GPU_C,
    ),
    Qualifier(
        (154,),
        "... to 0x4 (Drain and Reset)",
        _action("4", "Drain (?:P2P )?and Reset"),
        Level.INFORMATIONAL,
        "running work may end; the GPU is to be reset after it",
        f"{_GPU_C}; leptonai/gpud, kmsg_test.go",
    ),
    Qualifier(
        (154,),
        "... to 0x5 (Recover IMEX Domain)",
        _action("5", "Recover IMEX Domain"),
        Level.INFORMATIONAL,
        "memory of other nodes cannot be reached; the GPU is fine",
        _GPU_C,
    ),
    Qualifier(
        (154,),
        "... to 0x1 (GPU Reset Required), 0x1 (PF FLR), 0x6 (Bus Reset)",
        _action("[16]", r"(?:GPU|Bus|PCIe Bus) Reset(?: Required)?|PF FLR"),
        Level.DEVICE,
        "the GPU is of no use until it is reset",
        f"{_GPU_C}; nvmlDeviceGpuRecoveryAction_t; reports on driver 610",
    ),
    Qualifier(
        (154,),
        "... to 0x2 (Node Reboot Required), 0x2 (OS Reboot), 0x7 (System Reboot)",
        _action("[27]", r"(?:Node|OS|System) Reboot(?: Required)?"),
        Level.DEVICE,
        "the machine must be started again",
        f"{_GPU_C}; nvmlDeviceGpuRecoveryAction_t; reports on driver 610",
    ),
    Qualifier(
        (154,),
        "... to one of these numbers with another name, or a new number with such a name",
        r"GPU recovery action changed.{0,80} to (?:0x[1267] \((?!none\)|drain)[a-z0-9 ]{1,40}\)"
        r"|0x(?:[89a-f]|[1-9a-f][0-9a-f]+) \((?!drain)[a-z0-9 ]{0,30}(?:reset|reboot)[a-z0-9 ]{0,30}\))",
        Level.DEVICE,
        "the number or the name speaks of a reset or reboot",
        "nvmlDeviceGpuRecoveryAction_t",
        proven=False,
    ),
    Qualifier(
        (94, 95),
        "Contained: PMU. RST: Yes, D-RST: No; Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
        _CONTAINMENT + r"Yes, D-RST: (?:Yes|No)",
        Level.DEVICE,
        "the GPU is of no use until it is reset, contained or not",
        _CONTAINMENT_C,
    ),
    Qualifier(
        (94, 95),
        "Contained: SM (0x1). RST: No, D-RST: No; Uncontained: FBHUB. RST: No, D-RST: No",
        _CONTAINMENT + r"No, D-RST: (?:Yes|No)",
        Level.CLIENT,
        "work that used the memory was ended; the GPU goes on (D-RST: Yes, it is to be reset when work has ended)",
        f"akash-network/support #244; {_CONTAINMENT_C}",
    ),
    Qualifier(
        (94,),
        "Contained ECC error",
        r"Contained (?:ECC )?error\.?",
        Level.CLIENT,
        "the same, without the driver's fields",
        "leptonai/gpud #1174",
    ),
    Qualifier(
        (94, 95),
        "GSP-RISCV instance 0 ... fatal error",
        r"GSP-RISCV instance \d+ [^,]{1,40} fatal error(?: \(mask: 0x[0-9a-f]+\))?",
        Level.DEVICE,
        "the GPU's system processor has stopped",
        f"{_OPEN}, kernel_gsp_gb100.c",
    ),
    Qualifier(
        (48,),
        "An uncorrectable double bit error (DBE) has been detected on GPU ...",
        r"An uncorrectable double bit error \(DBE\) has been detected on GPU.*",
        Level.DEVICE,
        "data were lost; Xid 94 or 95 beside it says how far, without one the GPU is to be reset",
        "vendor's page retirement guide; lines of drivers 470 to 550",
        proven=False,
    ),
    Qualifier(
        (64,),
        "Row Remapper: ... failure; Dynamic Page Retirement: Fatal error, unable to retire page (...)",
        r"Row Remapper: [^,]{0,80}failure|Row remapping failure"
        r"|Dynamic Page Retirement: (?:FATAL|Fatal error), unable to retire page \([^,]{1,30}\)",
        Level.DEVICE,
        "bad memory could not be left out: the GPU is to be replaced",
        "vendor's page retirement guide; leptonai/gpud, xid_test.go",
    ),
    Qualifier(
        (79,),
        "GPU has fallen off the bus",
        r"GPU has fallen off the bus\.?",
        Level.DEVICE,
        "the GPU is gone",
        f"{_OPEN}, osinit.c; Bumblebee-Project/Bumblebee #677",
    ),
    Qualifier(
        (62,),
        "0000(0000) 00000000 00000000",
        r"(?:[0-9a-f]{4}\([0-9a-f]{4}\)|[0-9a-f]{4,8})(?: [0-9a-f]{8}){2,8}",
        Level.DEVICE,
        "the GPU's power management has stopped",
        "reports on drivers 418 to 580",
    ),
    Qualifier(
        (119,),
        "Timeout after 6s of waiting for RPC response from GPU0 GSP! ...",
        r"Timeout (?:after \d+s of )?waiting for RPC (?:response )?from (?:GPU\d+ )?GSP!.*",
        Level.DEVICE,
        "the GPU's system processor does not answer",
        "leptonai/gpud, dmesg-with-xid-119.log",
    ),
    Qualifier(
        (120,),
        "GSP task exception: ...",
        r"GSP task (?:exception|panic): .+",
        Level.DEVICE,
        "the GPU's system processor has stopped",
        "reports on drivers 525 to 580",
    ),
    Qualifier(
        (110,),
        "SEC_FAULT: ...",
        r"SEC_FAULT: [a-z0-9_: ]{1,120}",
        Level.DEVICE,
        "only a cold reset clears it",
        f"{_OPEN}, kern_gpu_gh100.c",
    ),
    Qualifier(
        (140,),
        "An uncorrectable ECC error detected ...",
        r"An uncorrectable ECC error detected.*",
        Level.DEVICE,
        "memory lost data, and nothing caught it",
        f"{_OPEN}, kern_gpu_tu102.c",
    ),
    Qualifier(
        (136,),
        "NVLink: Link training failed for link ...",
        r"NVLink: Link training failed for links? .+",
        Level.DEVICE,
        "a link could not be set up",
        f"{_OPEN}, kernel_nvlink_gh100.c",
    ),
    Qualifier(
        (74,),
        "NVLink: fatal error detected on link 3(0x1, 0x0, 0x0, ...): bits 0, 23 and 30 of the first register alone",
        r"NVLink: fatal error detected on link \d+ ?\(0x(?:1|80000[01]|4000000[01]|4080000[01])(?:, 0x0){6}\)",
        Level.INFORMATIONAL,
        "it can be ignored, says the vendor's workflow",
        "WORKFLOW_NVLINK_ERR, as in NVIDIA/NVSentinel #364",
    ),
    Qualifier(
        (74,),
        "NVLink: fatal error detected on link ...",
        r"NVLink: fatal error detected on link \d+.*",
        Level.DEVICE,
        "a link failed; work on this GPU alone may go on",
        "NVIDIA/NVSentinel, csv_test.go",
        proven=False,
    ),
    Qualifier(
        (74,),
        "NVLink: failed to train link ...",
        r"NVLink: (?:non-?fatal error .{1,200}|failed to train link \d+ .{1,80})",
        Level.ENGINE,
        "a link has trouble; work on this GPU alone goes on",
        f"{_OPEN}, kernel_nvlinkcorelibtrain.c",
    ),
    Qualifier(
        (144, 145, 146, 150),
        "RLW_SRC_TRACK Fatal XC0 ...",
        _link("Fatal"),
        Level.DEVICE,
        "a link failed: each such row of the vendor's asks for a reset",
        f"{_DECODE}; leptonai/gpud #1160",
    ),
    Qualifier(
        (147, 148, 149),
        "NETIR_LINK_EVT Fatal XC0 ...",
        _link("Fatal"),
        Level.DEVICE,
        "a link failed: most such rows ask for a reset, some for nothing",
        f"{_DECODE}; leptonai/gpud #1174",
        proven=False,
    ),
    Qualifier(
        NVLINK5,
        "RLW_RXPIPE Nonfatal XC0 ...",
        _link("Non-?fatal"),
        Level.INFORMATIONAL,
        "nothing needs to be done, or Xid 154 says what",
        f"{_DECODE}; leptonai/gpud #1174; NVIDIA/nccl #2241",
    ),
)
"""The first row that fits counts."""


def table() -> str:
    """Return the qualifiers as a Markdown table, for docs/reference/xids.md."""
    lines = ["| Xid | words | level | certain | what it means | from |", "| --- | --- | --- | --- | --- | --- |"]
    for row in QUALIFIERS:
        numbers = "144 to 150" if row.numbers == NVLINK5 else ", ".join(map(str, row.numbers))
        certain = "" if row.level is not Level.DEVICE else "yes" if row.proven else "no"
        lines.append(f"| {numbers} | `{row.says}` | {row.level.value} | {certain} | {row.means} | {row.source} |")
    return "\n".join(lines) + "\n"
