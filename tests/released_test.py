"""convert.py knows the configs of models that people use, as they were published over the years."""

import jax
import numpy as np
import pytest
from absl.testing import absltest, parameterized

from data.images.fit import Fit
from tests.recorded import convert
from training import mesh
from training.config import resolve
from vit.conversion import preparation, timm

GPT2 = dict(  # of openai-community/gpt2
    activation_function='gelu_new', architectures=['GPT2LMHeadModel'], attn_pdrop=0.1, bos_token_id=50256, embd_pdrop=0.1,
    eos_token_id=50256, initializer_range=0.02, layer_norm_epsilon=1e-5, model_type='gpt2', n_ctx=1024, n_embd=768, n_head=12,
    n_layer=12, n_positions=1024, resid_pdrop=0.1, summary_activation=None, summary_first_dropout=0.1,
    summary_proj_to_labels=True, summary_type='cls_index', summary_use_proj=True,
    task_specific_params={'text-generation': {'do_sample': True, 'max_length': 50}}, vocab_size=50257)
T5 = dict(  # of google-t5/t5-small
    architectures=['T5ForConditionalGeneration'], d_ff=2048, d_kv=64, d_model=512, decoder_start_token_id=0, dropout_rate=0.1,
    eos_token_id=1, initializer_factor=1.0, is_encoder_decoder=True, layer_norm_epsilon=1e-6, model_type='t5', n_positions=512,
    num_heads=8, num_layers=6, output_past=True, pad_token_id=0, relative_attention_num_buckets=32, task_specific_params={},
    vocab_size=32128)
WORDS = dict(
    attention_probs_dropout_prob=0.1, gradient_checkpointing=False, hidden_act='gelu', hidden_dropout_prob=0.1, hidden_size=768,
    initializer_range=0.02, intermediate_size=3072, num_attention_heads=12, num_hidden_layers=12,
    position_embedding_type='absolute', use_cache=True)
BERT = WORDS | dict(  # of google-bert/bert-base-uncased
    architectures=['BertForMaskedLM'], layer_norm_eps=1e-12, max_position_embeddings=512, model_type='bert', pad_token_id=0,
    type_vocab_size=2, vocab_size=30522)
MULTILINGUAL = BERT | dict(
    directionality='bidi', pooler_fc_size=768, pooler_num_attention_heads=12, pooler_num_fc_layers=3, pooler_size_per_head=128,
    pooler_type='first_token_transform', vocab_size=119547)
ROBERTA = WORDS | dict(  # of FacebookAI/roberta-base
    architectures=['RobertaForMaskedLM'], bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5, max_position_embeddings=514,
    model_type='roberta', pad_token_id=1, type_vocab_size=1, vocab_size=50265)
BART = dict(  # of facebook/bart-base
    _name_or_path='bart-base', activation_dropout=0.1, activation_function='gelu', add_bias_logits=False,
    add_final_layer_norm=False, architectures=['BartModel'], attention_dropout=0.1, bos_token_id=0, classif_dropout=0.1,
    classifier_dropout=0.0, d_model=768, decoder_attention_heads=12, decoder_ffn_dim=3072, decoder_layerdrop=0.0,
    decoder_layers=6, decoder_start_token_id=2, dropout=0.1, early_stopping=True, encoder_attention_heads=12,
    encoder_ffn_dim=3072, encoder_layerdrop=0.0, encoder_layers=6, eos_token_id=2, forced_bos_token_id=0, forced_eos_token_id=2,
    gradient_checkpointing=False, id2label={'0': 'LABEL_0', '1': 'LABEL_1', '2': 'LABEL_2'}, init_std=0.02,
    is_encoder_decoder=True, max_position_embeddings=1024, model_type='bart', no_repeat_ngram_size=3, normalize_before=False,
    normalize_embedding=True, num_beams=4, num_hidden_layers=6, pad_token_id=1, scale_embedding=False,
    task_specific_params={'summarization': {'length_penalty': 1.0}}, torch_dtype='float32', use_cache=True, vocab_size=50265)
MNLI = BART | dict(  # of facebook/bart-large-mnli
    activation_dropout=0.0, architectures=['BartForSequenceClassification'], attention_dropout=0.0, classif_dropout=0.0,
    d_model=1024, decoder_attention_heads=16, decoder_ffn_dim=4096, decoder_layers=12, encoder_attention_heads=16,
    encoder_ffn_dim=4096, encoder_layers=12, num_hidden_layers=12, output_past=False, _num_labels=3)
VIT = dict(  # of google/vit-base-patch16-224
    architectures=['ViTForImageClassification'], attention_probs_dropout_prob=0.0, hidden_act='gelu', hidden_dropout_prob=0.0,
    hidden_size=768, id2label={str(i): f'class {i}' for i in range(1000)}, image_size=224, initializer_range=0.02,
    intermediate_size=3072, label2id={f'class {i}': i for i in range(1000)}, layer_norm_eps=1e-12, model_type='vit',
    num_attention_heads=12, num_channels=3, num_hidden_layers=12, patch_size=16, qkv_bias=True)
VIT_MAE = {key: value for key, value in VIT.items() if 'label' not in key} | dict(  # of facebook/vit-mae-base
    architectures=['ViTMAEForPreTraining'], decoder_hidden_size=512, decoder_intermediate_size=2048,
    decoder_num_attention_heads=16, decoder_num_hidden_layers=8, layer_norm_eps=1e-12, mask_ratio=0.75, model_type='vit_mae',
    norm_pix_loss=False, torch_dtype='float32', transformers_version='4.16.0.dev0')
RESNET = dict(  # of microsoft/resnet-50
    architectures=['ResNetForImageClassification'], depths=[3, 4, 6, 3], downsample_in_first_stage=False, embedding_size=64,
    hidden_act='relu', hidden_sizes=[256, 512, 1024, 2048], id2label={str(i): f'class {i}' for i in range(1000)},
    label2id={f'class {i}': i for i in range(1000)}, layer_type='bottleneck', model_type='resnet', num_channels=3,
    out_features=None, stage_names=['stem', 'stage1', 'stage2', 'stage3', 'stage4'], torch_dtype='float32')

ALBERT = dict(  # of albert/albert-base-v2
    architectures=['AlbertForMaskedLM'], attention_probs_dropout_prob=0, bos_token_id=2, classifier_dropout_prob=0.1,
    down_scale_factor=1, embedding_size=128, eos_token_id=3, gap_size=0, hidden_act='gelu_new', hidden_dropout_prob=0,
    hidden_size=768, initializer_range=0.02, inner_group_num=1, intermediate_size=3072, layer_norm_eps=1e-12,
    max_position_embeddings=512, model_type='albert', net_structure_type=0, num_attention_heads=12, num_hidden_groups=1,
    num_hidden_layers=12, num_memory_blocks=0, pad_token_id=0, type_vocab_size=2, vocab_size=30000)
ELECTRA = dict(  # of google/electra-small-discriminator
    architectures=['ElectraForPreTraining'], attention_probs_dropout_prob=0.1, embedding_size=128, hidden_act='gelu',
    hidden_dropout_prob=0.1, hidden_size=256, initializer_range=0.02, intermediate_size=1024, layer_norm_eps=1e-12,
    max_position_embeddings=512, model_type='electra', num_attention_heads=4, num_hidden_layers=12, summary_activation='gelu',
    summary_last_dropout=0.1, summary_type='first', summary_use_proj=True, type_vocab_size=2, vocab_size=30522)
DISTILBERT = dict(  # of distilbert/distilbert-base-uncased
    activation='gelu', architectures=['DistilBertForMaskedLM'], attention_dropout=0.1, dim=768, dropout=0.1, hidden_dim=3072,
    initializer_range=0.02, max_position_embeddings=512, model_type='distilbert', n_heads=12, n_layers=6, pad_token_id=0,
    qa_dropout=0.1, seq_classif_dropout=0.2, sinusoidal_pos_embds=False, tie_weights_=True, vocab_size=30522)
SWIN = dict(  # of microsoft/swin-tiny-patch4-window7-224
    architectures=['SwinForImageClassification'], attention_probs_dropout_prob=0.0, depths=[2, 2, 6, 2], drop_path_rate=0.1,
    embed_dim=96, encoder_stride=32, hidden_act='gelu', hidden_dropout_prob=0.0, hidden_size=768,
    id2label={str(i): f'class {i}' for i in range(1000)}, image_size=224, initializer_range=0.02, layer_norm_eps=1e-5,
    label2id={f'class {i}': i for i in range(1000)}, mlp_ratio=4.0, model_type='swin', num_channels=3,
    num_heads=[3, 6, 12, 24], num_layers=4, patch_size=4, path_norm=True, qkv_bias=True, use_absolute_embeddings=False,
    window_size=7)
TIMM = dict(  # as of timm/swin_tiny_patch4_window7_224.ms_in1k and timm/davit_tiny.msft_in1k
    global_pool='avg', num_classes=1000, pretrained_cfg={
        'crop_pct': 0.9, 'input_size': [3, 224, 224], 'interpolation': 'bicubic', 'mean': [0.485, 0.456, 0.406],
        'std': [0.229, 0.224, 0.225]})

# preprocessor_config.json, in the forms of several versions.
_OF_IMAGENET = dict(do_normalize=True, do_resize=True, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225])
PREPARED = {
    'google/vit-base-patch16-224': dict(
        do_normalize=True, do_rescale=True, do_resize=True, image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5],
        image_processor_type='ViTFeatureExtractor', resample=2, rescale_factor=0.00392156862745098,
        size={'height': 224, 'width': 224}),
    'facebook/deit-base-distilled-patch16-224': _OF_IMAGENET | dict(
        crop_size=224, do_center_crop=True, feature_extractor_type='DeiTFeatureExtractor', resample=3, size=256),
    'microsoft/swin-tiny-patch4-window7-224': _OF_IMAGENET | dict(
        feature_extractor_type='ViTFeatureExtractor', resample=3, size=224),
    'microsoft/resnet-50': _OF_IMAGENET | dict(
        crop_pct=0.875, feature_extractor_type='ConvNextFeatureExtractor', resample=3, size=224),
    'facebook/dinov2-base': _OF_IMAGENET | dict(
        crop_size={'height': 224, 'width': 224}, do_center_crop=True, do_convert_rgb=True, do_rescale=True,
        image_processor_type='BitImageProcessor', resample=3, rescale_factor=0.00392156862745098, size={'shortest_edge': 256}),
    'facebook/vit-mae-base': _OF_IMAGENET | dict(feature_extractor_type='ViTFeatureExtractor', resample=2, size=224)}


class ReleasedTest(parameterized.TestCase):
    """The configs of models that people use, written by many versions; their sizes are known."""

    @parameterized.parameters(
        (GPT2, 124_439_808), (GPT2 | dict(n_layer=6, _num_labels=1, id2label={'0': 'LABEL_0'}), 81_912_576),  # distilgpt2
        (GPT2 | dict(n_embd=1024, n_head=16, n_layer=24, n_special=0, predict_special_tokens=True), 354_823_168),  # gpt2-medium
        (T5, 60_506_624), (T5 | dict(
            d_ff=1024, feed_forward_proj='gated-gelu', num_decoder_layers=8, num_heads=6, num_layers=8, use_cache=True,
            tie_word_embeddings=False), 76_961_152),  # t5-v1_1-small; flan-t5-small has the same
        (BERT, 109_514_298), (MULTILINGUAL, 177_974_523), (BERT | dict(architectures=['BertForPreTraining']), 110_106_428),
        (ROBERTA, 124_697_433), (BART, 139_420_416 + 50_265), (MNLI, 407_344_131), (VIT, 86_567_656), (VIT_MAE, 111_907_840),
        (RESNET, 25_557_032), (SWIN, 28_288_354),
        (ALBERT, 11_221_680), (ELECTRA, 13_549_057),
        (DISTILBERT, 66_985_530))  # BART's with a bias
    @pytest.mark.slow
    def test_size(self, config, parameters):
        family = next(family for family in convert.FAMILIES if config['architectures'][0] in family.names)
        head = {} if config.get('tie_word_embeddings', True) else {'lm_head.weight': None}
        config = family.prepared(config, head) if family.prepared else config
        model = convert.resolve.construct(convert.base.part(family.model, **convert.fields_of(family, config)))
        shapes = convert.shapes_of(family, model, config)
        named = mesh.flat(*shapes.values())
        self.assertEqual(sum(x.size for x in jax.tree.leaves(shapes['params'])), parameters)
        self.assertLen(family.entries({name: x.shape for name, x in named.items()}, model), len(jax.tree.leaves(shapes)) - (
            4 * model.stack.layers if config['model_type'] == 'gpt2' else 0))  # three kernels, and three biases, are one there

    @parameterized.parameters(('swin_tiny_patch4_window7_224', 28_288_354), ('davit_tiny', 28_360_168),
                              ('davit_base_fl', 90_370_048))
    @pytest.mark.slow
    def test_size_of_those_of_timm(self, architecture, parameters):
        florence = {'num_classes': 0} if architecture.endswith('_fl') else {}
        config = timm.flat(TIMM | florence | {'architecture': architecture, 'model_args': {}})
        fitting = [family for family in convert.FAMILIES if family.kind == config['model_type']]
        family = fitting[1] if florence else fitting[0]
        model = convert.resolve.construct(convert.base.part(family.model, **convert.fields_of(family, config)))
        shapes = convert.shapes_of(family, model, config)['params']
        self.assertEqual(sum(x.size for x in jax.tree.leaves(shapes)), parameters)
        self.assertEqual(preparation.read(None, config).fit, "CentreCrop(filter='bicubic', share=0.9)")

    @parameterized.parameters(
        ('google/vit-base-patch16-224', VIT, 'Stretch()', (0, 0, 500, 375), 0.5),
        ('facebook/deit-base-distilled-patch16-224', VIT | dict(model_type='deit'), "Stretch(filter='bicubic', share=0.875)",
         (31.25, 23.4375, 468.75, 351.5625), 0.485),
        ('microsoft/swin-tiny-patch4-window7-224', SWIN, "Stretch(filter='bicubic')", (0, 0, 500, 375), 0.485),
        ('microsoft/resnet-50', RESNET, "CentreCrop(filter='bicubic', share=0.875)",
         (85.04398826979472, 23.4375, 413.4897360703812, 351.5625), 0.485),  # of 341 x 256
        ('facebook/dinov2-base', VIT | dict(model_type='dinov2_with_registers', image_size=518, patch_size=14),
         "CentreCrop(filter='bicubic', share=0.875)", (85.04398826979472, 23.4375, 413.4897360703812, 351.5625), 0.485),
        ('facebook/vit-mae-base', VIT_MAE, 'Stretch()', (0, 0, 500, 375), 0.485))
    def test_preparation(self, name, config, fit, part, mean):
        """What becomes 224 x 224 pixels of a photograph of 500 x 375."""
        found = preparation.read(PREPARED[name], config)
        self.assertEqual((found.height, found.width, found.fit, found.mean[0]), (224, 224, fit, mean))
        np.testing.assert_allclose(resolve.parse(fit, Fit, 'data.fit').box((500, 375), (224, 224), None), part, rtol=1e-12)

    def test_architectures_of_timm_that_are_not_known(self):
        with self.assertRaisesRegex(ValueError, "names the architecture 'swinv2_tiny' of timm; expected one of swin_tiny"):
            timm.flat({'architecture': 'swinv2_tiny'})


if __name__ == '__main__':
    absltest.main()
