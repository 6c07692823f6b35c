import types

from absl.testing import absltest, parameterized

from training.host import devices


def device(kind, **attributes):
    return types.SimpleNamespace(device_kind=kind, **attributes)


class PeakTest(parameterized.TestCase):
    @parameterized.parameters(
        ('NVIDIA H100 80GB HBM3', 989.5, 67),
        ('NVIDIA H100 PCIe', 756.5, 51),
        ('NVIDIA H200', 989.5, 67),
        ('NVIDIA GH200 480GB', 989.5, 67),
        ('NVIDIA A100-SXM4-40GB', 312, 19.5),
        ('NVIDIA A100-PCIE-40GB', 312, 19.5),
        ('NVIDIA L4', 121, 30.3),
        ('NVIDIA L40S', 362, 91.6),
        ('TPU v2', 23, 23 / 6),
        ('TPU v3', 61.5, 61.5 / 6),
        ('TPU v4', 275, 275 / 6),
        ('TPU v5 lite', 197, 197 / 6),
        ('TPU v5p', 459, 459 / 6),
        ('TPU v5', 459, 459 / 6),
        ('TPU v6 lite', 918, 918 / 6),
        ('TPU7x', 1153.5, 1153.5 / 6),
    )
    def test_known_devices(self, kind, bfloat16, float32):
        self.assertAlmostEqual(devices.peak_flops(device(kind)) / 1e12, bfloat16)
        self.assertEqual(devices.peak_flops(device(kind), 'mixed'), devices.peak_flops(device(kind)))
        self.assertAlmostEqual(devices.peak_flops(device(kind), 'float32') / 1e12, float32)

    def test_a_core_of_a_split_chip_has_half_of_it(self):
        self.assertEqual(devices.peak_flops(device('TPU v4', num_cores=2)), 275e12)
        self.assertEqual(devices.peak_flops(device('TPU v4', num_cores=1)), 137.5e12)
        self.assertEqual(devices.peak_flops(device('TPU v5 lite', num_cores=1)), 197e12)

    def test_types_without_units_have_no_peak(self):
        self.assertIsNone(devices.peak_flops(device('Tesla T4')))
        self.assertEqual(devices.peak_flops(device('Tesla T4'), 'float16'), 65e12)
        self.assertEqual(devices.peak_flops(device('Tesla V100-SXM2-16GB'), 'float32'), 15.7e12)
        self.assertEqual(devices.peak_flops(device('Tesla V100-PCIE-16GB'), 'float16'), 112e12)
        self.assertIsNone(devices.peak_flops(device('TPU v4'), 'float16'))
        for kind in ('NVIDIA H200', 'TPU v4', 'cpu'):
            self.assertIsNone(devices.peak_flops(device(kind), 'float64'))

    @parameterized.parameters(
        'cpu', 'NVIDIA A10G', 'NVIDIA GeForce RTX 4090 Laptop GPU', 'NVIDIA H100 80GB HBM3 MIG 1g.10gb', 'TPU v99'
    )
    def test_unknown_devices_have_no_peak(self, kind):
        self.assertIsNone(devices.peak_flops(device(kind)))

    @parameterized.parameters(
        ('NVIDIA H100 80GB HBM3', 700),
        ('NVIDIA H100 PCIe', 350),
        ('NVIDIA H200', 700),
        ('NVIDIA H200 NVL', 600),
        ('NVIDIA GH200 480GB', 1000),
        ('NVIDIA GB200', 1200),
        ('NVIDIA A100-SXM4-80GB', 400),
        ('NVIDIA A100-PCIE-40GB', 250),
        ('NVIDIA A100 80GB PCIe', 300),
        ('Tesla V100-SXM2-16GB', 300),
        ('Tesla V100-PCIE-16GB', 250),
        ('NVIDIA L4', 72),
        ('TPU v2', 140),
        ('TPU v3', 131),
        ('TPU v4', 192),
    )
    def test_power_at_full_load(self, kind, watts):
        self.assertEqual(devices.board_watts(device(kind)), watts)

    def test_a_core_of_a_split_chip_draws_half_of_it(self):
        self.assertEqual(devices.board_watts(device('TPU v4', num_cores=1)), 96)

    @parameterized.parameters('cpu', 'NVIDIA A10G', 'NVIDIA H100 80GB HBM3 MIG 1g.10gb', 'TPU v5 lite', 'TPU v5p', 'TPU7x')
    def test_power_that_is_not_published(self, kind):
        self.assertIsNone(devices.board_watts(device(kind)))

    def test_unknown_type(self):
        with self.assertRaisesRegex(ValueError, 'int8'):
            devices.peak_flops(device('NVIDIA L4'), 'int8')


class ChipTest(parameterized.TestCase):
    @parameterized.parameters(('TPU v4', 300e9), ('TPU v5 lite', 200e9), ('TPU v5e', 200e9), ('TPU v5', 600e9),
                              ('TPU v5p', 600e9), ('TPU v6 lite', 400e9))
    def test_every_chip_that_is_compiled_for(self, kind, links):
        chip = devices.chip(device(kind))
        self.assertEqual(chip.links, links)
        self.assertGreater(chip.bandwidth, chip.links)

    def test_others_are_unknown(self):
        self.assertIsNone(devices.chip(device('cpu')))


if __name__ == '__main__':
    absltest.main()
