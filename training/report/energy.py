"""An estimate of the energy and CO2 of a run: power x time x PUE, and that times what the grid emits for a kWh.

    kWh = PUE · W · s / 3.6e6,   kg CO2e = kWh · (g/kWh) / 1000

after Strubell et al. 2019, "Energy and policy considerations for deep learning in NLP", section 2, equation 1, where W
adds up processor, memory and GPUs as they were measured. Nothing is measured here: unless energy.watts says more, W is
that of the devices at full load, which a run of small steps does not reach, and the hosts of accelerators are left out.
The time is that of training from where it reads its config, with what it waits, compiles and evaluates. Of CPUs on several
hosts the first one's cores count.
"""

import os

from training.host.devices import board_watts
from training.report.report import duration, si

CORE_WATTS = 12.0  # of a processor of no known kind: Lannelongue et al. 2021, Green Algorithms, data/TDP_cpu.csv, "Any"
NOTHING = {'seconds': 0.0, 'joules': 0.0}


def kilowatt_hours(watts, seconds, pue):
    """kWh that a data centre takes up for devices of so many W; pue, its power over that of its computers, is 1 or more."""
    return pue * watts * seconds / 3.6e6


def kilograms_co2e(kwh, grams_per_kwh):
    return kwh * grams_per_kwh / 1e3


def full_load_watts(mesh):
    """W of all devices of a mesh at full load, or None where no figure is known."""
    device = mesh.devices.flat[0]
    if device.platform == 'cpu':  # its devices share the cores; hardware threads count as such
        return CORE_WATTS * len(os.sched_getaffinity(0))
    watts = board_watts(device)
    return None if watts is None else watts * mesh.size


def add(spent, watts, seconds):
    """What a run has spent after `seconds` more at `watts`: {'seconds', 'joules'}, joules being None once W is not known.

    It is kept in every checkpoint, so a run that is resumed, on other devices perhaps, adds up. What a killed process did
    after its last checkpoint is not known to the next one, and is left out.
    """
    known = watts is not None and spent['joules'] is not None
    return {'seconds': spent['seconds'] + seconds, 'joules': spent['joules'] + watts * seconds if known else None}


def line(config, spent):
    """What a run says at its end.

    Args:
      config: the group `energy` of a config.
      spent: of `add`.
    """
    seconds, joules = spent['seconds'], spent['joules']
    if not config.watts and joules is None:
        return (f'energy: not known, because the power of its devices is not; set --config.energy.watts to what they draw '
                f'together, in W ({duration(seconds)}, PUE {config.pue:g}, {config.grams_per_kwh:g} g/kWh)')
    watts, load = (config.watts, '') if config.watts else (joules / seconds, ' at full load')
    kwh = kilowatt_hours(watts, seconds, config.pue)
    kilograms = kilograms_co2e(kwh, config.grams_per_kwh)
    mass = si(kilograms / 1e3, 't') if kilograms >= 1e3 else si(kilograms * 1e3, 'g')
    return (f'energy: about {si(kwh * 1e3, "Wh")}, {mass} CO2e ({watts:,.4g} W{load} x {duration(seconds)}, '
            f'PUE {config.pue:g}, {config.grams_per_kwh:g} g/kWh); set --config.energy.* for your machine')
