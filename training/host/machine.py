"""Settings of the process, applied once before the first computation; memory checks and profiles."""

import contextlib
import math
import os
import pathlib
import platform
import re

from training.host import allocator


def cache_folder():
    return pathlib.Path(os.environ.get('HEED_CACHE') or '~/.cache/heed').expanduser()


def cores():
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1  # not on macOS


def threads():
    """How many threads XLA gives a CPU at most: the cores, or fewer if PJRT_NPROC or NPROC says so."""
    for name in ('PJRT_NPROC', 'NPROC'):
        with contextlib.suppress(ValueError):
            return max(1, min(cores(), int(os.environ.get(name, ''))))
    return cores()


def processor():
    """The kind of CPU, such as 'Intel(R) Xeon(R) Processor, family 6, model 167': of one name there are several kinds. What the
    system calls the architecture where it does not say."""
    try:
        lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:
        lines = []
    said = {key.strip(): value.strip() for key, _, value in (line.partition(':') for line in lines)}
    if 'model name' not in said:
        return platform.processor() or platform.machine()
    kinds = ('family', 'cpu family'), ('model', 'model')
    return ', '.join([said['model name'], *(f'{name} {said[key]}' for name, key in kinds if key in said)])


def prepare(config, sparing=False):
    """Sets the allocator, determinism on GPUs, 64-bit types for dtype='float64', and the compilation cache under $HEED_CACHE
    (default ~/.cache/heed). Raises ValueError for dtype='float64' on an accelerator.

    sparing: return freed memory to the system, for scripts that read and write arrays once; otherwise it is kept for the next
    step, unless the config says allocator=False.
    """
    if sparing:
        allocator.give_pages_back()
    elif config.get('allocator', True):
        allocator.keep_pages()
    if fake := re.search(r'host_platform_device_count=(\d+)', os.environ.get('XLA_FLAGS', '')):
        # With XLA's default, a thread per core or device, one run in five of two devices on two busy cores hung: a collective
        # waited for a thread that never came.
        os.environ.setdefault('NPROC', str(2 * int(fake[1]) + cores()))
    if config.get('deterministic'):
        os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + ' --xla_gpu_deterministic_ops=true'
    import jax

    exact = config.get('dtype') == 'float64'
    jax.config.update('jax_enable_x64', exact)
    if exact and (platform := jax.default_backend()) != 'cpu':
        raise ValueError(f"dtype is 'float64', which is for proofs on a CPU, but this process computes on a {platform}; set "
                         'dtype to float32, or JAX_PLATFORMS=cpu in the environment.')
    if config.get('allocator', True):  # so that the main thread allocates a step's temporaries
        jax.config.update('jax_cpu_enable_async_dispatch', False)
    # A program for a CPU is cut for as many threads as it was compiled with, which JAX's cache does not ask about.
    jax.config.update('jax_compilation_cache_dir', str(cache_folder() / 'xla' / f'{threads()}_threads'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)


def require_memory(compiled, mesh):
    """Raises ValueError if a device has less memory than a compiled program needs for its arrays."""
    sizes, device = compiled.memory_analysis(), mesh.devices.flat[0]
    if sizes is None:
        return
    needed = (sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
              + sizes.temp_size_in_bytes)
    if device.platform == 'cpu':  # its devices, but not those of other processes, share the memory of the machine
        needed, there = needed * len(mesh.local_devices), os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    else:
        there = (device.memory_stats() or {}).get('bytes_limit', math.inf)
    if needed > there:
        raise ValueError(f'A step needs {needed / 2**30:,.1f} GiB, but {device.device_kind} has {there / 2**30:,.1f}; '
                         'lower data.batch_size, raise train.microbatches, or set model.remat.')


class Profile:
    """Writes a JAX profile of the steps 'first:last' (both included) of `total` to a folder; '' for none."""

    def __init__(self, steps, total, folder):
        first, _, last = steps.partition(':')
        if steps and not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= total):
            raise ValueError(f"profile.steps is {steps!r}; expected 'first:last', such as 10:15, of the {total} steps.")
        self._first, self._last = (int(first), int(last)) if steps else (0, 0)
        self._folder, self._running = folder, False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._running:
            self._stop()

    def before(self, first, last):
        """Begins the trace ahead of the steps `first` to `last` if one of them is asked for."""
        if self._first and self._first <= last and first <= self._last and not self._running:
            import jax
            jax.profiler.start_trace(str(self._folder))
            self._running = True

    def after(self, step, outputs):
        """Ends the trace after the last step, once its outputs are computed."""
        if self._running and step >= self._last:
            import jax
            jax.block_until_ready(outputs)
            self._stop()

    def _stop(self):
        import jax
        self._running = False
        jax.profiler.stop_trace()
