"""Records how processors of transformers and transforms of timm prepare images, for tests/vit/conversion/preparation_test.py.

    pip install torch torchvision transformers timm
    python tests/reference/record_preparation.py

preparation.json has the cases: {name: settings}, the contents of a preprocessor_config.json, or the pretrained_cfg of timm;
preparation.npz for each

    NAME/images                   [image, channels, height, width] float32: `image_0`, .. prepared by the class that
                                  AutoImageProcessor takes (torchvision), or by create_transform; some rows and columns
    NAME/pillow                   the same, prepared by the class of transformers that resizes with Pillow

and the images themselves, uint8 [height, width, 3]. Recorded with transformers 5.24, torchvision 0.29, timm 1.0.31, Pillow 13.
"""

import json
import pathlib

import numpy as np
import timm.data
import torch
import transformers
from PIL import Image

HERE = pathlib.Path(__file__).parent
IMAGENET = dict(image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225])
# But for the sizes, those named after a model are as published.
CASES = {
    'vit': dict(feature_extractor_type='ViTFeatureExtractor', size=20, resample=2, image_mean=[0.5] * 3, image_std=[0.5] * 3),
    'vit_wide': dict(image_processor_type='ViTImageProcessor', size=dict(height=13, width=22), resample=1),
    'swin': dict(image_processor_type='ViTFeatureExtractor', size=24, resample=3, **IMAGENET),
    'deit': dict(image_processor_type='DeiTFeatureExtractor', size=25, crop_size=20, do_center_crop=True, resample=3,
                 **IMAGENET),
    'deit_wide': dict(image_processor_type='DeiTImageProcessor', size=dict(height=16, width=24), do_center_crop=True,
                      crop_size=dict(height=14, width=21), resample=5),
    'resnet': dict(image_processor_type='ConvNextFeatureExtractor', size=21, crop_pct=0.875, resample=3, **IMAGENET),
    'resnet_other': dict(image_processor_type='ConvNextImageProcessor', size=dict(shortest_edge=17), crop_pct=0.7, resample=2),
    'resnet_large': dict(image_processor_type='ConvNextFeatureExtractor', size=384, crop_pct=0.875, resample=3, **IMAGENET),
    'dinov2': dict(image_processor_type='BitImageProcessor', size=dict(shortest_edge=25), do_convert_rgb=True, resample=3,
                   crop_size=dict(height=22, width=22), do_center_crop=True, **IMAGENET),
    'bit': dict(image_processor_type='BitImageProcessor', size=19, crop_size=19, resample=0),
    'unscaled': dict(image_processor_type='ViTImageProcessor', size=20, do_rescale=False, resample=4),
    'unnormalised': dict(image_processor_type='ViTImageProcessor', size=20, do_normalize=False, rescale_factor=1 / 127.5),
    'timm': dict(input_size=[3, 22, 22], crop_pct=0.9, interpolation='bicubic'),
    'timm_wide': dict(input_size=[3, 18, 26], crop_pct=0.9, interpolation='bilinear', crop_mode='center', mean=[0.5] * 3,
                      std=[0.5] * 3),
    'timm_squash': dict(input_size=[3, 20, 26], crop_pct=0.95, interpolation='bicubic', crop_mode='squash'),
}


def drawn(height, width, seed):
    """uint8 [height, width, 3]: waves of some colours, edges, and grain."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width][..., None] / 8
    waves = sum(np.sin(rng.normal(size=3) * x + rng.normal(size=3) * y + rng.uniform(0, 6, 3)) for _ in range(4)) * 45 + 120
    waves[height // 5:height // 2, width // 3:width // 2] = rng.uniform(0, 255, 3)
    waves[-height // 7:, :width // 4] = 255
    return np.clip(waves + rng.normal(0, 12, waves.shape), 0, 255).astype(np.uint8)


def prepared(settings, pillow, images):
    named = settings.get('image_processor_type') or settings['feature_extractor_type']
    named = named.replace('FeatureExtractor', 'ImageProcessor') + 'Pil' * pillow
    processor = getattr(transformers, named).from_dict(settings)
    return torch.stack([processor(one, return_tensors='pt')['pixel_values'][0] for one in images])


def main():
    arrays = {f'image_{i}': drawn(*sides, i) for i, sides in enumerate(((53, 37), (41, 90), (65, 64), (11, 18)))}
    images, found = [Image.fromarray(one) for one in arrays.values()], {}
    for name, settings in CASES.items():
        if name.startswith('timm'):
            config = timm.data.resolve_data_config(pretrained_cfg=settings)
            made = {'images': torch.stack([*map(timm.data.create_transform(**config), images)])}
        else:
            kinds = ('images', 'pillow')[settings.get('resample', 2) > 3:]  # torchvision has neither 'box' nor 'hamming'
            made = {kind: prepared(settings, kind == 'pillow', images) for kind in kinds}
        step = max(1, next(iter(made.values())).shape[-1] // 10)
        found |= {f'{name}/{kind}': x[..., ::step, ::step].numpy() for kind, x in made.items()}
    (HERE / 'preparation.json').write_text(json.dumps(CASES, indent=1) + '\n')
    np.savez_compressed(HERE / 'preparation.npz', **arrays, **found)


if __name__ == '__main__':
    main()
