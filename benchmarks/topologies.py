"""Devices that are not there, for the compilers of TPUs and of GPUs, which run without one."""

import importlib.util
import os
import re

# An H100 SXM5 as the driver describes it (CUDA C++ programming guide, table of compute capability 9.0; NVIDIA H100 datasheet),
# in the form of XLA's GpuTargetConfigProto.
H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98  threads_per_warp: 32
  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448  shared_memory_per_core: 233472
  l2_cache_size: 52428800  device_memory_size: 84929347584  memory_bandwidth: 3352320000000
}
platform_name: "CUDA"
runtime_version { major: 13 }
dnn_version_info { major: 9  minor: 12 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
PACKAGES = {'tpu': 'libtpu', 'gpu': 'jax-cuda13-plugin'}  # of their compilers
_ALONE = {'TPU_SKIP_MDS_QUERY': '1', 'ALLOW_MULTIPLE_LIBTPU_LOAD': '1'}  # there is no TPU, and others may use its compiler
EXTRAS = {'tpu': 'jax[tpu]', 'gpu': 'jax[cuda13]'}


def without_devices():
    """Before jax is imported: no device is looked for."""
    os.environ |= {'JAX_PLATFORMS': 'cpu', 'CUDA_VISIBLE_DEVICES': '-1'} | _ALONE


def kind_of(topology):
    """'gpu' for 'h100:8' and the like, else 'tpu'."""
    return 'gpu' if topology.startswith('h100:') else 'tpu'


def available(kind):
    """Whether the compiler for 'tpu' or 'gpu' is installed."""
    return importlib.util.find_spec(PACKAGES[kind].replace('-', '_')) is not None


def devices_of(topology):
    """The devices of a slice of TPUs, such as 'v5e:4x4', or of 1 to 8 GPUs of one machine, 'h100:8'. Raises ValueError without
    their compiler, and for what is none."""
    from jax.experimental import topologies

    kind, count = kind_of(topology), topology.partition(':')[2]
    if kind == 'gpu' and not re.fullmatch('[1-8]', count):
        raise ValueError(f'--topology={topology} has {count or "no"} GPUs; name one to eight of a machine, such as h100:8.')
    how = {'platform': 'cuda', 'topology': f'1x1x{count}', 'target_config': H100} if kind == 'gpu' else {'platform': 'tpu'}
    if topology.startswith('v4:'):
        how['chip_config_name'] = 'megacore'  # its two cores as one device, as on a TPU VM
    if re.fullmatch('1x1(x1)?', count):
        how['chips_per_host_bounds'] = (1, 1, 1)  # not the four of most hosts
    os.environ |= _ALONE
    try:
        return topologies.get_topology_desc(topology_name=topology, **how).devices
    except Exception as error:  # of several types, one for each release
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        missing = '' if available(kind) else f'install "{EXTRAS[kind]}", and '
        raise ValueError(f'--topology={topology} cannot be compiled for ({reason:.200}); {missing}name a slice such as '
                         'v5e:4x4, or h100:8.') from None
