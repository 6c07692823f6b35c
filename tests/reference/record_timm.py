"""As record.py, of models of timm in its own form, {architecture, model_args} in config.json.

    pip install torch timm
    python tests/reference/record_timm.py [swin davit]
"""

import copy
import json
import pathlib
import shutil
import sys

import numpy as np
import timm
import torch
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).parent


def record(name, architecture, image, **args):
    """Writes the folder of a model, called with two images [channels, height, width]."""
    folder, draw = HERE / name, torch.Generator().manual_seed(0)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    args |= {'in_chans': image[0], 'num_classes': 3}
    model = timm.create_model(architecture, **args).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=draw))
    save_file(model.state_dict(), folder / 'model.safetensors', metadata={'format': 'pt'})
    config = {'architecture': architecture, 'num_classes': 3, 'model_args': args, 'label_names': ['no', 'yes', 'both'],
              'pretrained_cfg': {'input_size': image, 'mean': [0.5] * image[0], 'std': [0.25] * image[0], 'crop_pct': 1.0,
                                 'interpolation': 'bilinear', 'num_classes': 3}}
    (folder / 'config.json').write_text(json.dumps(config, indent=2, sort_keys=True) + '\n')
    x, direction = torch.randn(2, *image, generator=draw), torch.randn(2, 3, generator=draw).double()
    half = copy.deepcopy(model).bfloat16()(x.bfloat16()).float()
    model = model.double()
    logits = model(x.double())
    (logits * direction).sum().backward()
    gradients = {f'gradient/{key}': one.grad.numpy() for key, one in model.named_parameters()}
    np.savez_compressed(folder / 'case.npz', **gradients, **{
        'input/pixel_values': x.numpy(), 'output/logits': logits.detach().numpy(), 'direction/logits': direction.numpy(),
        'half/logits': half.detach().numpy()})


def swin():
    """A grid of 8x8 patches, in windows with shifts; and one of 7x9, which timm rolls before it pads."""
    small = dict(patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4], mlp_ratio=2.0)
    record('timm_swin', 'swin_tiny_patch4_window7_224', [3, 16, 16], img_size=[16, 16], window_size=4, **small)
    record('timm_swin_padded', 'swin_base_patch4_window12_384', [1, 14, 18], img_size=[14, 18], window_size=5, qkv_bias=False,
           **small)


def davit():
    """A grid of 8x8 patches in windows of 4; and one of 9x7, padded everywhere, in the forms of Florence-2."""
    small = dict(depths=[1, 1], embed_dims=[8, 12], num_heads=[2, 3], mlp_ratio=2.0)
    record('timm_davit', 'davit_tiny', [3, 32, 32], window_size=4, **small)
    record('timm_davit_florence', 'davit_base_fl', [1, 34, 27], window_size=3, qkv_bias=False, cpe_act=True,
           head_norm_first=True, named_blocks=False, **small | dict(depths=[1, 2]))


if __name__ == '__main__':
    makers = {make.__name__: make for make in (swin, davit)}
    for one in sys.argv[1:] or makers:
        torch.manual_seed(0)
        makers[one]()
