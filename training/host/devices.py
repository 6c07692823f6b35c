"""Peak speed of accelerators, the denominator of "percent of peak", and their maximal power."""

import dataclasses
import re

# TFLOP/s of matrix products, dense (half of what NVIDIA prints "with sparsity"), accumulated in float32, for
# (bfloat16, float16, float32). float32 is the rate of the plain float32 units, because precision 'highest' forbids
# TF32. None: not published, or the type is emulated. Then the W of the whole board at full load (TDP; the upper end
# where it can be set). The first pattern found in `device.device_kind` counts.
_GPUS = (
    (r'\bMIG\b', (None, None, None), None),  # a slice of a GPU: the figures of the whole do not hold
    (r'\bGB200\b', (2500, 2500, 80), 1200),  # NVIDIA GB200 NVL72 datasheet, a 72nd; W: Blackwell architecture brief
    (r'\bB200\b', (2250, 2250, 75), 1000),  # NVIDIA HGX B200 datasheet, an eighth
    (r'\bH200 NVL\b', (835.5, 835.5, 60), 600),  # NVIDIA H200 datasheet
    (r'\bGH200\b', (989.5, 989.5, 67), 1000),  # NVIDIA GH200 datasheet; W with its processor and memory
    (r'\bH200\b', (989.5, 989.5, 67), 700),  # NVIDIA H200 datasheet, SXM
    (r'\bH100 NVL\b', (835.5, 835.5, 60), 400),  # NVIDIA H100 datasheet
    (r'\bH100 PCIe\b', (756.5, 756.5, 51), 350),  # NVIDIA H100 datasheet
    (r'\bH100\b', (989.5, 989.5, 67), 700),  # NVIDIA H100 datasheet, SXM
    (r'\bA100-PCIE-40GB\b', (312, 312, 19.5), 250),  # NVIDIA A100 datasheet
    (r'\bA100 80GB PCIe\b', (312, 312, 19.5), 300),  # NVIDIA A100 datasheet
    (r'\bA100\b', (312, 312, 19.5), 400),  # NVIDIA A100 datasheet, SXM
    (r'\bA10$', (125, 125, 31.2), 150),  # NVIDIA A10 datasheet
    (r'\bL40S\b', (362, 362, 91.6), 350),  # NVIDIA L40S datasheet
    (r'\bL40$', (181, 181, 90.5), 300),  # NVIDIA L40 datasheet
    (r'\bL4$', (121, 121, 30.3), 72),  # NVIDIA L4 datasheet
    (r'\bT4$', (None, 65, 8.1), 70),  # NVIDIA T4 datasheet; no bfloat16 units before Ampere
    (r'\bV100S\b', (None, 130, 16.4), 250),  # NVIDIA V100 datasheet
    (r'\bV100-PCIE\b', (None, 112, 14), 250),  # NVIDIA V100 datasheet
    (r'\bV100\b', (None, 125, 15.7), 300),  # NVIDIA V100 datasheet, SXM2
    (r'\bRTX A6000$', (154.8, 154.8, 38.7), 300),  # NVIDIA GA102 whitepaper, table of the RTX A6000
    (r'\bRTX 3090$', (71, 71, 35.6), 350),  # NVIDIA GA102 whitepaper, appendix A
    (r'\bRTX 4090$', (165.2, 165.2, 82.6), 450),  # NVIDIA Ada whitepaper, appendix A
    (r'\bMI300X\b', (1307.4, 1307.4, 163.4), 750),  # AMD Instinct MI300X datasheet
)

# bfloat16 TFLOP/s, TensorCores and W of a chip: the most that was measured, or its TDP; None: not published. A JAX device
# is one core, or a whole chip where its cores work as one.
_TPUS = (
    (r'TPU v2$', 46, 2, 280),  # Jouppi et al., A domain-specific supercomputer for training deep neural networks, table 3; TDP
    (r'TPU v3$', 123, 2, 262),  # cloud.google.com/tpu/docs/v3; measured
    (r'TPU v4$', 275, 2, 192),  # cloud.google.com/tpu/docs/v4; measured
    (r'TPU v5( lite|e)$', 197, 1, None),  # cloud.google.com/tpu/docs/v5e
    (r'TPU v5p?$', 459, 2, None),  # cloud.google.com/tpu/docs/v5p
    (r'TPU v6( lite|e)$', 918, 1, None),  # cloud.google.com/tpu/docs/v6e
    (r'TPU ?v?7x?$', 2307, 2, None),  # cloud.google.com/tpu/docs/tpu7x
)

# Of a chip: GB of memory, GB/s of memory, GB/s that all its links together send to other chips (half of what both
# directions have; of a GPU within its machine), dollars an hour, on demand in the United States (cloud.google.com/tpu/pricing,
# November 2026; of GPUs many).
_CHIPS = (
    (r'\bH100 80GB HBM3$', 84.9, 3350, 450, None),  # NVIDIA H100 datasheet, SXM; memory: what a driver of it reports
    (r'TPU v4$', 34.4, 1200, 300, 3.22),  # cloud.google.com/tpu/docs/v4; links: Jouppi et al. 2023, TPU v4, table 4
    (r'TPU v5( lite|e)$', 17.2, 819, 200, 1.20),  # docs.cloud.google.com/tpu/docs/v5e
    (r'TPU v5p?$', 102.0, 2765, 600, 4.20),  # docs.cloud.google.com/tpu/docs/v5p
    (r'TPU v6( lite|e)$', 34.4, 1638, 400, 2.70),  # docs.cloud.google.com/tpu/docs/v6e
)


@dataclasses.dataclass(frozen=True)
class Chip:
    """What limits a chip besides its products, in bytes, bytes a second and dollars an hour (None: not known)."""
    memory: float
    bandwidth: float
    links: float
    price: float | None


def chip(device) -> Chip | None:
    """The figures of a device that is a whole chip; None where none are known."""
    found = _found(_CHIPS, device)
    return found and Chip(*(1e9 * figure for figure in found[:3]), found[3])


def peak_flops(device, dtype: str = 'bfloat16') -> float | None:
    """Peak FLOP/s of matrix products on one JAX device, dense, or None where no figure is known (every CPU).

    `dtype` is that of the operands: 'bfloat16', 'float16', 'float32' at precision 'highest', 'mixed', which has those of
    bfloat16, or 'float64', for which no figure is known. Raises ValueError for any other.
    """
    types, dtype = ('bfloat16', 'float16', 'float32', 'float64'), 'bfloat16' if dtype == 'mixed' else dtype
    if dtype not in types:
        raise ValueError(
            f'peak_flops was given dtype={dtype!r}, expected one of {", ".join(types)}: pass one of these.'
        )
    if gpu := _found(_GPUS, device):
        teraflops = dict(zip(types, gpu[0])).get(dtype)
        return None if teraflops is None else teraflops * 1e12
    if tpu := _found(_TPUS, device):
        passes = {'bfloat16': 1, 'float32': 6}.get(dtype)  # 'highest' takes six bfloat16 products; no float16 units
        return None if passes is None else tpu[0] * 1e12 * _share_of_chip(device, tpu[1]) / passes
    return None


def board_watts(device) -> float | None:
    """The power of one JAX device at full load in W, without its host, or None where no figure is known (every CPU). Few
    programs keep a device at this limit.
    """
    if gpu := _found(_GPUS, device):
        return gpu[1]
    if tpu := _found(_TPUS, device):
        return None if tpu[2] is None else tpu[2] * _share_of_chip(device, tpu[1])
    return None


def _found(table, device) -> list | None:
    """The figures of a device in a table, by the first pattern that matches."""
    return next((figures for pattern, *figures in table if re.search(pattern, device.device_kind)), None)


def _share_of_chip(device, cores: int) -> float:
    """The share of a chip that a device is: v4 and v5p join their two cores into one device by default, other pairs are two."""
    joined = getattr(device, 'num_cores', 2 if re.search(r'v4|v5', device.device_kind) else 1)
    return min(joined, cores) / cores
