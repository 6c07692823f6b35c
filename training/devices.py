"""Peak speed of accelerators, the denominator of "percent of peak"."""

import re

# TFLOP/s of matrix products, dense (half of what NVIDIA prints "with sparsity"), accumulated in float32, for
# (bfloat16, float16, float32). float32 is the rate of the plain float32 units, because precision 'highest' forbids
# TF32. None: not published, or the type is emulated. The first pattern found in `device.device_kind` counts.
_GPUS = (
    (r'\bMIG\b', (None, None, None)),  # a slice of a GPU: the figures of the whole do not hold
    (r'\bGB200\b', (2500, 2500, 80)),  # NVIDIA GB200 NVL72 datasheet, a 72nd
    (r'\bB200\b', (2250, 2250, 75)),  # NVIDIA HGX B200 datasheet, an eighth
    (r'\bH200 NVL\b', (835.5, 835.5, 60)),  # NVIDIA H200 datasheet
    (r'\b(G?H200)\b', (989.5, 989.5, 67)),  # NVIDIA H200 and GH200 datasheets
    (r'\bH100 NVL\b', (835.5, 835.5, 60)),  # NVIDIA H100 datasheet
    (r'\bH100 PCIe\b', (756.5, 756.5, 51)),  # NVIDIA H100 datasheet
    (r'\bH100\b', (989.5, 989.5, 67)),  # NVIDIA H100 datasheet, SXM
    (r'\bA100\b', (312, 312, 19.5)),  # NVIDIA A100 datasheet, SXM and PCIe
    (r'\bA10$', (125, 125, 31.2)),  # NVIDIA A10 datasheet
    (r'\bL40S\b', (362, 362, 91.6)),  # NVIDIA L40S datasheet
    (r'\bL40$', (181, 181, 90.5)),  # NVIDIA L40 datasheet
    (r'\bL4$', (121, 121, 30.3)),  # NVIDIA L4 datasheet
    (r'\bT4$', (None, 65, 8.1)),  # NVIDIA T4 datasheet; no bfloat16 units before Ampere
    (r'\bV100S\b', (None, 130, 16.4)),  # NVIDIA V100 datasheet
    (r'\bV100-PCIE\b', (None, 112, 14)),  # NVIDIA V100 datasheet
    (r'\bV100\b', (None, 125, 15.7)),  # NVIDIA V100 datasheet, SXM2
    (r'\bRTX A6000$', (154.8, 154.8, 38.7)),  # NVIDIA GA102 whitepaper, table of the RTX A6000
    (r'\bRTX 3090$', (71, 71, 35.6)),  # NVIDIA GA102 whitepaper, appendix A
    (r'\bRTX 4090$', (165.2, 165.2, 82.6)),  # NVIDIA Ada whitepaper, appendix A
    (r'\bMI300X\b', (1307.4, 1307.4, 163.4)),  # AMD Instinct MI300X datasheet
)

# bfloat16 TFLOP/s and TensorCores of a chip. A JAX device is one core, or a whole chip where its cores work as one.
_TPUS = (
    (r'TPU v2$', 46, 2),  # Jouppi et al., A domain-specific supercomputer for training deep neural networks, table 3
    (r'TPU v3$', 123, 2),  # cloud.google.com/tpu/docs/v3
    (r'TPU v4$', 275, 2),  # cloud.google.com/tpu/docs/v4
    (r'TPU v5( lite|e)$', 197, 1),  # cloud.google.com/tpu/docs/v5e
    (r'TPU v5p?$', 459, 2),  # cloud.google.com/tpu/docs/v5p
    (r'TPU v6( lite|e)$', 918, 1),  # cloud.google.com/tpu/docs/v6e
    (r'TPU ?v?7x?$', 2307, 2),  # cloud.google.com/tpu/docs/tpu7x
)


def peak_flops(device, dtype: str = 'bfloat16') -> float | None:
    """Peak FLOP/s of matrix products on one JAX device, dense, or None where no figure is known (every CPU).

    `dtype` is that of the operands: 'bfloat16', 'float16', or 'float32' at precision 'highest'. Raises ValueError for
    another one.
    """
    types = ('bfloat16', 'float16', 'float32')
    if dtype not in types:
        raise ValueError(
            f'peak_flops was given dtype={dtype!r}, expected one of {", ".join(types)}: pass one of these.'
        )
    kind = device.device_kind
    for pattern, figures in _GPUS:
        if re.search(pattern, kind):
            teraflops = figures[types.index(dtype)]
            return None if teraflops is None else teraflops * 1e12
    for pattern, teraflops, cores in _TPUS:
        if re.search(pattern, kind):
            # v4 and v5p join their two cores into one device unless told otherwise; the other pairs are two devices
            joined = getattr(device, 'num_cores', 2 if re.search(r'v4|v5', kind) else 1)
            passes = {'bfloat16': 1, 'float32': 6}.get(dtype)  # 'highest' takes six bfloat16 products; no float16 units
            return None if passes is None else teraflops * 1e12 * min(joined, cores) / cores / passes
    return None
