"""Every test runs on eight fake devices of the CPU, with a cache of its own; set before anything imports jax."""

import gc
import os
import shutil
import sys
import tempfile
from importlib import metadata

import pytest
from absl import flags

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['XLA_FLAGS'] = (
    '--xla_force_host_platform_device_count=8 '
    # most of the time of tiny models is compilation: a third of it without LLVM's optimizations, a seventh less in one piece
    '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1')
if metadata.version('jaxlib').startswith('0.10.'):  # of what is left, half is MLIR for fusions; later ones know no other way
    os.environ['XLA_FLAGS'] += ' --xla_cpu_use_fusion_emitters=false'
os.environ['JAX_TRACEBACK_IN_LOCATIONS_LIMIT'] = '0'  # programs do not remember the lines that made them
os.environ['HEED_MODULES'] = 'tests'  # whose classes stand in configs of runs
os.environ['NPROC'] = '18'  # as training.host.machine.prepare sets it
gc.set_threshold(200_000, 20, 50)  # tracing makes many small objects, few of them garbage
flags.FLAGS.mark_as_parsed()  # temporary folders of absltest and Grain's worker processes read flags
IS_WORKER = 'PYTEST_XDIST_WORKER' in os.environ  # workers inherit the cache, so that they share what they compile
if not IS_WORKER:
    os.environ['HEED_CACHE'] = tempfile.mkdtemp(prefix='heed_cache_')
CACHE = os.environ['HEED_CACHE']


def pytest_collection_modifyitems(config, items):
    """Tests in a browser, and those with compilers for accelerators, run if `-m` names them."""
    for mark in ('browser', 'accelerators'):
        if mark not in config.option.markexpr:
            apart = [item for item in items if item.get_closest_marker(mark)]
            config.hook.pytest_deselected(items=apart)
            items[:] = [item for item in items if item not in apart]


@pytest.fixture(autouse=True, scope='module')
def forget_programs():
    """A process slows down with the thousands of programs that it has compiled; programs on the disk are for runs alone."""
    yield
    if 'jax' in sys.modules:
        import jax
        from jax.experimental.compilation_cache import compilation_cache

        jax.clear_caches()
        jax.config.update('jax_compilation_cache_dir', None)
        compilation_cache.reset_cache()


def pytest_unconfigure():
    if not IS_WORKER:
        shutil.rmtree(CACHE, ignore_errors=True)
