"""An estimate of the energy and CO2 of a run: power x time x PUE, times the emissions of the grid per kWh.

    kWh = PUE · W · s / 3.6e6,   kg CO2e = kWh · (g/kWh) / 1000

after Strubell et al. 2019, "Energy and policy considerations for deep learning in NLP", section 2, equation 1, where W is the
measured sum of processor, memory and GPUs. Nothing is measured here: unless energy.watts is set, W is the power of the devices
at full load, which a run of small steps does not reach, without the hosts of accelerators. The time is that of the whole
process after it has read its config: waiting, compilation and evaluation count. On several hosts with CPUs, only the cores of
the first count.
"""


from training.host import machine
from training.host.devices import board_watts
from training.report.report import duration, si

CORE_WATTS = 12.0  # of any processor: Lannelongue et al. 2021, Green Algorithms, data/TDP_cpu.csv, "Any"
NOTHING = {'seconds': 0.0, 'joules': 0.0}
UNKNOWN = 'energy: unknown, as the power of the devices is unknown; set --config.energy.watts to their total power in W'


def kilowatt_hours(watts, seconds, pue):
    """kWh that a data centre uses for devices of `watts`; pue, its power over that of its computers, is 1 or more."""
    return pue * watts * seconds / 3.6e6


def kilograms_co2e(kwh, grams_per_kwh):
    return kwh * grams_per_kwh / 1e3


def full_load_watts(mesh):
    """W of all devices of a mesh at full load, or None where no figure is known."""
    device = mesh.devices.flat[0]
    if device.platform == 'cpu':  # its devices share the cores; hardware threads count as such
        return CORE_WATTS * machine.cores()
    watts = board_watts(device)
    return None if watts is None else watts * mesh.size


def add(spent, watts, seconds):
    """The time and energy of a run after `seconds` more at `watts`: {'seconds', 'joules'}; joules is None once W is unknown.

    Every checkpoint stores them, so a resumed run, perhaps on other devices, continues the sum. The work of a killed process
    after its last checkpoint is lost to it.
    """
    known = watts is not None and spent['joules'] is not None
    return {'seconds': spent['seconds'] + seconds, 'joules': spent['joules'] + watts * seconds if known else None}


def line(config, spent):
    """The line on energy that a run prints at its end.

    Args:
      config: the group `energy` of a config.
      spent: the result of `add`.
    """
    seconds, joules = spent['seconds'], spent['joules']
    if not config.watts and joules is None:
        return f'{UNKNOWN} ({duration(seconds)}, PUE {config.pue:g}, {config.grams_per_kwh:g} g/kWh)'
    watts, load = (config.watts, '') if config.watts else (joules / seconds, ' at full load')
    kwh = kilowatt_hours(watts, seconds, config.pue)
    kilograms = kilograms_co2e(kwh, config.grams_per_kwh)
    mass = si(kilograms / 1e3, 't') if kilograms >= 1e3 else si(kilograms * 1e3, 'g')
    return (f'energy: about {si(kwh * 1e3, "Wh")}, {mass} CO2e ({watts:,.4g} W{load} x {duration(seconds)}, '
            f'PUE {config.pue:g}, {config.grams_per_kwh:g} g/kWh); set --config.energy.* for your machine')
