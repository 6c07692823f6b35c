"""As record.py, of BERT and its relatives, BART and ViT with their heads, and of GPT-2 and T5 with those that classify.

    python tests/reference/record_encoders.py [bert roberta albert electra distilbert gpt2 t5 bart vit deit dinov2 mae swin
                                               resnet]
"""

import copy
import sys
import tempfile

import torch
import transformers as hf
from record import generated, ids, padded, record, shaken
from safetensors.torch import load_file

WORDS = dict(vocab_size=67, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
             max_position_embeddings=24, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
SHALLOW = WORDS | dict(num_hidden_layers=1)
CLASSES = dict(id2label={0: 'no', 1: 'yes', 2: 'both'}, label2id={'no': 0, 'yes': 1, 'both': 2})


def typed():
    """(inputs with token types, where outputs count, and where those of a row do, as its first position is no padding)."""
    mask = padded()
    types = torch.zeros(3, 11, dtype=torch.long)
    types[:, 5:] = 1
    return dict(input_ids=ids(67, 3, 11), attention_mask=mask, token_type_ids=types), mask, mask[:, :1]


def case(name, model, inputs, there, scale=0.2):
    record(name, shaken(model, scale), inputs, there)


def bert():
    inputs, mask, begun = typed()
    words = {'prediction_logits': mask, 'last_hidden_state': mask, 'seq_relationship_logits': begun}
    case('bert', hf.BertForPreTraining(hf.BertConfig(**WORDS)), inputs, words)
    other = hf.BertConfig(**SHALLOW | dict(type_vocab_size=3, hidden_act='relu', layer_norm_eps=1e-2))
    case('bert_masked', hf.BertForMaskedLM(other), inputs, {'logits': mask})
    case('bert_model', hf.BertModel(hf.BertConfig(**SHALLOW)), inputs, {'last_hidden_state': mask, 'pooler_output': begun})
    case('bert_next', hf.BertForNextSentencePrediction(hf.BertConfig(**SHALLOW)), inputs, {'logits': begun})
    case('bert_classes', hf.BertForSequenceClassification(hf.BertConfig(**SHALLOW, **CLASSES)), inputs, {'logits': begun})
    case('bert_tags', hf.BertForTokenClassification(hf.BertConfig(**SHALLOW, **CLASSES, classifier_dropout=0.3)), inputs,
         {'logits': mask})
    case('bert_span', hf.BertForQuestionAnswering(hf.BertConfig(**SHALLOW)), inputs, {'start_logits': mask, 'end_logits': mask})


def roberta():
    mask = padded()
    inputs = dict(input_ids=ids(67, 3, 11).clamp(min=3).masked_fill(mask == 0, 1), attention_mask=mask)
    small = SHALLOW | dict(type_vocab_size=1, bos_token_id=0, eos_token_id=2, pad_token_id=1, max_position_embeddings=26)
    case('roberta', hf.RobertaForMaskedLM(hf.RobertaConfig(**small)), inputs, {'logits': mask, 'last_hidden_state': mask})
    case('roberta_classes', hf.RobertaForSequenceClassification(hf.RobertaConfig(**small)), inputs,
         {'logits': mask[:, :1]})


def albert():
    """Four layers in two groups; and one group, with tables as wide as the model, which are projected all the same."""
    inputs, mask, begun = typed()
    small = WORDS | dict(embedding_size=12, num_hidden_groups=2, num_hidden_layers=4)
    words = {'prediction_logits': mask, 'last_hidden_state': mask, 'sop_logits': begun}
    case('albert', hf.AlbertForPreTraining(hf.AlbertConfig(**small)), inputs, words)
    other = hf.AlbertConfig(**WORDS | dict(embedding_size=16, type_vocab_size=3, hidden_act='relu', layer_norm_eps=1e-2))
    case('albert_masked', hf.AlbertForMaskedLM(other), inputs, {'logits': mask})
    small = hf.AlbertConfig(**WORDS | dict(embedding_size=6), **CLASSES)
    case('albert_model', hf.AlbertModel(small), inputs, {'last_hidden_state': mask, 'pooler_output': begun})
    case('albert_classes', hf.AlbertForSequenceClassification(small), inputs, {'logits': begun})
    case('albert_tags', hf.AlbertForTokenClassification(small), inputs, {'logits': mask})
    spans = hf.AlbertForQuestionAnswering(hf.AlbertConfig(**WORDS | dict(embedding_size=6)))
    case('albert_span', spans, inputs, {'start_logits': mask, 'end_logits': mask})


def electra():
    """The discriminator and the generator, whose head has a GELU where the feed-forwards have ReLU; and the discriminator's
    body under other heads, once with tables as wide as the model."""
    inputs, mask, begun = typed()
    small = WORDS | dict(embedding_size=12, hidden_act='relu')
    states = {'logits': mask, 'last_hidden_state': mask}
    case('electra', hf.ElectraForPreTraining(hf.ElectraConfig(**small)), inputs, states)
    case('electra_masked', hf.ElectraForMaskedLM(hf.ElectraConfig(**small)), inputs, states)
    small = SHALLOW | dict(embedding_size=6, layer_norm_eps=1e-2, type_vocab_size=3)
    equal = hf.ElectraConfig(**small | dict(embedding_size=16), **CLASSES, classifier_dropout=0.3)
    case('electra_classes', hf.ElectraForSequenceClassification(equal), inputs, {'logits': begun})
    case('electra_tags', hf.ElectraForTokenClassification(hf.ElectraConfig(**small, **CLASSES)), inputs, {'logits': mask})
    case('electra_span', hf.ElectraForQuestionAnswering(hf.ElectraConfig(**small)), inputs,
         {'start_logits': mask, 'end_logits': mask})
    case('electra_model', hf.ElectraModel(hf.ElectraConfig(**small)), inputs, {'last_hidden_state': mask})


def distilbert():
    mask = padded()
    inputs = dict(input_ids=ids(67, 3, 11), attention_mask=mask)
    small = dict(vocab_size=67, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=24, dropout=0.0,
                 attention_dropout=0.0)
    case('distilbert', hf.DistilBertForMaskedLM(hf.DistilBertConfig(**small)), inputs,
         {'logits': mask, 'last_hidden_state': mask})
    small |= dict(n_layers=1)
    classes = hf.DistilBertConfig(**small, **CLASSES)  # whose head has a ReLU, whatever the feed-forwards have
    case('distilbert_classes', hf.DistilBertForSequenceClassification(classes), inputs, {'logits': mask[:, :1]})
    small |= dict(activation='relu')
    case('distilbert_tags', hf.DistilBertForTokenClassification(hf.DistilBertConfig(**small, **CLASSES)), inputs,
         {'logits': mask})
    case('distilbert_span', hf.DistilBertForQuestionAnswering(hf.DistilBertConfig(**small)), inputs,
         {'start_logits': mask, 'end_logits': mask})
    case('distilbert_model', hf.DistilBertModel(hf.DistilBertConfig(**small)), inputs, {'last_hidden_state': mask})


def gpt2():
    mask = padded()
    small = dict(vocab_size=67, n_positions=24, n_embd=16, n_head=2, n_layer=1, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                 bos_token_id=0, eos_token_id=0, pad_token_id=0)
    inputs = dict(input_ids=ids(67, 3, 11) * mask, attention_mask=mask)
    case('gpt2_classes', hf.GPT2ForSequenceClassification(hf.GPT2Config(**small)), inputs, {'logits': None})
    front = mask.clone()  # no padding behind, whose state transformers reads where it is not told otherwise
    front[1] = 1
    choice = hf.GPT2DoubleHeadsModel(hf.GPT2Config(**small))
    case('gpt2_choice', choice, dict(input_ids=ids(67, 3, 11) * front, attention_mask=front),
         {'logits': front, 'mc_logits': None})
    case('gpt2_tags', hf.GPT2ForTokenClassification(hf.GPT2Config(**small, classifier_dropout=0.1)), inputs, {'logits': mask})
    case('gpt2_span', hf.GPT2ForQuestionAnswering(hf.GPT2Config(**small)), inputs, {'start_logits': mask, 'end_logits': mask})


def bart():
    small = dict(vocab_size=67, d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
                 decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=24, dropout=0.0,
                 forced_eos_token_id=None, scale_embedding=True)
    decoder = torch.ones(3, 7, dtype=torch.long)
    decoder[1, 5:] = 0
    words = lambda *shape, seed=0: ids(67, *shape, seed=seed).clamp(min=3)  # not what pads, which learns nothing
    inputs = dict(input_ids=words(3, 21), attention_mask=padded(length=21), decoder_input_ids=words(3, 7, seed=3),
                  decoder_attention_mask=decoder)
    model = shaken(hf.BartForConditionalGeneration(hf.BartConfig(**small)), 0.15)
    model.model.decoder.embed_positions.weight.data *= 8  # or it says one word for ever
    model.final_logits_bias += 0.3 * torch.randn(67, generator=torch.Generator().manual_seed(5))
    more = generated(model, input_ids=words(8, 9, seed=4), attention_mask=padded(8, 9))
    there = {'logits': decoder, 'last_hidden_state': decoder, 'encoder_last_hidden_state': padded(length=21)}

    record('bart', model, inputs, there, more)
    read, mask = read_again(pad=1, end=2)
    small |= dict(encoder_layers=1)
    case('bart_classes', hf.BartForSequenceClassification(hf.BartConfig(**small)), read, {'logits': None})
    case('bart_span', hf.BartForQuestionAnswering(hf.BartConfig(**small)), read, {'start_logits': mask, 'end_logits': mask})


def read_again(pad, end):
    """Inputs of a decoder that reads the same as the encoder, whose end stands for all; what pads them is behind."""
    mask = torch.ones(3, 11, dtype=torch.long)
    mask[1, 8:], mask[2, 5:] = 0, 0
    last = mask - torch.nn.functional.pad(mask[:, 1:], (0, 1))
    return dict(input_ids=ids(67, 3, 11).clamp(min=3).masked_fill(mask == 0, pad).masked_fill(last == 1, end),
                attention_mask=mask), mask


def t5():
    small = dict(vocab_size=67, d_model=16, d_kv=6, d_ff=24, num_layers=1, num_heads=3, relative_attention_num_buckets=8,
                 relative_attention_max_distance=16, dropout_rate=0.0, decoder_start_token_id=0)
    read, mask = read_again(pad=0, end=1)
    classes = hf.T5Config(**small, num_labels=3, classifier_dropout=0.1)
    case('t5_classes', hf.T5ForSequenceClassification(classes), read, {'logits': None})
    other = hf.T5Config(**small | dict(feed_forward_proj='gated-gelu'), tie_word_embeddings=False)
    case('t5_span', hf.T5ForQuestionAnswering(other), read, {'start_logits': mask, 'end_logits': mask})
    alone = dict(input_ids=ids(67, 3, 21), attention_mask=padded(length=21))
    case('t5_encoder', hf.T5EncoderModel(other), alone, {'last_hidden_state': padded(length=21)})
    case('t5_tags', hf.T5ForTokenClassification(classes), alone, {'logits': padded(length=21)})


def vit():
    small = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=12, patch_size=4)
    images = lambda *shape: torch.randn(3, *shape, generator=torch.Generator().manual_seed(6))
    model, inputs = shaken(hf.ViTForImageClassification(hf.ViTConfig(**small))), dict(pixel_values=images(3, 12, 12))
    other = images(3, 16, 8)  # of another size, for which positions are interpolated
    body = lambda x: model.vit(x, interpolate_pos_encoding=True).last_hidden_state
    found = lambda x: {'logits': model(x, interpolate_pos_encoding=True).logits, 'last_hidden_state': body(x)}
    resized = {'resized/pixel_values': other, **{f'resized/{key}': x for key, x in found(other).items()}}
    record('vit', model, inputs, {'logits': None}, resized)
    one = hf.ViTConfig(**small | dict(num_hidden_layers=1, image_size=(12, 8), num_channels=1))
    case('vit_model', hf.ViTModel(one), dict(pixel_values=images(1, 12, 8)), {'last_hidden_state': None, 'pooler_output': None})
    model = hf.IJepaForImageClassification(hf.IJepaConfig(**small))
    case('ijepa', model, dict(pixel_values=images(3, 12, 12)), {'logits': None})


def deit():
    small = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, patch_size=4)
    images = lambda *shape: torch.randn(3, *shape, generator=torch.Generator().manual_seed(6))
    model = shaken(hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**small, image_size=12, **CLASSES)))
    names = 'logits', 'cls_logits', 'distillation_logits'
    other = images(3, 20, 8)  # of another size, for which positions are interpolated
    found = model(other, interpolate_pos_encoding=True)
    resized = {'resized/pixel_values': other, **{f'resized/{key}': found[key] for key in names}}
    record('deit', model, dict(pixel_values=images(3, 12, 12)), dict.fromkeys(names), resized)
    odd = hf.DeiTConfig(**small | dict(num_hidden_layers=2), image_size=(12, 20), num_channels=1, **CLASSES)
    case('deit_classes', hf.DeiTForImageClassification(odd), dict(pixel_values=images(1, 12, 20)), {'logits': None})
    case('deit_model', hf.DeiTModel(odd), dict(pixel_values=images(1, 12, 20)), {
        'last_hidden_state': None, 'pooler_output': None})


def dinov2():
    """Without a gate under a head, and gated, also on images of another size: larger in height and smaller in width."""
    small = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=12, patch_size=4)
    images = lambda *shape: torch.randn(3, *shape, generator=torch.Generator().manual_seed(6))

    def unmasked(model):
        """Shaken, but for the token of masked patches, which nothing reads."""
        model = shaken(model)
        next(x for name, x in model.named_parameters() if name.endswith('mask_token')).data.zero_()
        return model

    config = hf.Dinov2WithRegistersConfig(**small, mlp_ratio=2, num_register_tokens=3, num_channels=1, **CLASSES)
    model = unmasked(hf.Dinov2WithRegistersForImageClassification(config))
    record('dinov2', model, dict(pixel_values=images(1, 12, 12)), {'logits': None})
    model = unmasked(hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**small, use_swiglu_ffn=True)))
    other = images(3, 20, 8)
    names = 'last_hidden_state', 'pooler_output'
    found = model(other)
    resized = {'resized/pixel_values': other, **{f'resized/{key}': found[key] for key in names}}
    record('dinov2_model', model, dict(pixel_values=images(3, 12, 12)), dict.fromkeys(names), resized)


def mae():
    """4 of 9 patches are kept, by noise that bfloat16 can hold; what else the forward gives, and its loss with the pixels of a
    patch standardised or not."""
    small = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=12, patch_size=4,
                 decoder_hidden_size=12, decoder_num_hidden_layers=1, decoder_num_attention_heads=3,
                 decoder_intermediate_size=20, mask_ratio=0.55)
    draw = torch.Generator().manual_seed(7)
    images = torch.randn(3, 3, 12, 12, generator=draw)
    noise = torch.stack([torch.randperm(9, generator=draw) for _ in range(3)]) / 16
    inputs = dict(pixel_values=images, noise=noise)
    model = shaken(hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**small)))
    more, exact = {}, copy.deepcopy(model).double()
    for name, normalised in (('plain', False), ('standardised', True)):
        exact.config.norm_pix_loss = normalised
        found = exact(**{key: x.double() for key, x in inputs.items()})
        more |= {f'loss/{name}': found.loss, 'masking/mask': found.mask, 'masking/ids_restore': found.ids_restore}
    record('vit_mae', model, inputs, {'logits': None}, more)
    one = hf.ViTMAEConfig(**small | dict(num_hidden_layers=1, image_size=(12, 8), num_channels=1, norm_pix_loss=True,
                                         layer_norm_eps=1e-6))
    noise = torch.stack([torch.randperm(6, generator=draw) for _ in range(3)]) / 16
    case('vit_mae_model', hf.ViTMAEModel(one), dict(pixel_values=images[:, :1, :, :8], noise=noise),
         {'last_hidden_state': None})


def swin():
    """A grid of 8x8 patches, in windows with shifts; one of 7x9, where patches, windows and merging are padded; and three
    stages of 12x8, 6x4 and 3x2 patches in windows of an even side, of which the last ones are padded."""
    images = lambda *shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(6))
    small = dict(patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4], mlp_ratio=2.0)
    whole = hf.SwinConfig(**small, image_size=16, window_size=4, use_absolute_embeddings=True)
    case('swin', hf.SwinForImageClassification(whole), dict(pixel_values=images(3, 16, 16)), {'logits': None})
    other = hf.SwinConfig(**small | dict(depths=[2, 1]), image_size=(13, 17), num_channels=1, window_size=3, qkv_bias=False,
                          layer_norm_eps=1e-2, hidden_act='relu')
    case('swin_model', hf.SwinModel(other), dict(pixel_values=images(1, 13, 17)), {
        'last_hidden_state': None, 'pooler_output': None})
    stages = hf.SwinConfig(**small | dict(embed_dim=4, depths=[2, 1, 2], num_heads=[1, 2, 2]), image_size=(24, 16),
                           window_size=2, use_absolute_embeddings=True)
    case('swin_stages', hf.SwinForImageClassification(stages), dict(pixel_values=images(3, 24, 16)), {'logits': None})


def resnet():
    """Of bottlenecks and of basic blocks, on images of odd sizes; of the first also all weights after a step of SGD; the last
    without a head."""
    images = lambda *shape: torch.randn(3, *shape, generator=torch.Generator().manual_seed(6))
    small = dict(embedding_size=8, hidden_sizes=[16, 24], depths=[2, 1], downsample_in_bottleneck=True, **CLASSES)
    for name, changes, image in (
            ('resnet', {}, images(3, 27, 21)),
            ('resnet_basic', dict(layer_type='basic', hidden_sizes=[8, 12], downsample_in_first_stage=True,
                                  downsample_in_bottleneck=False, hidden_act='silu', num_channels=1), images(1, 19, 26)),
            ('resnet_model', dict(downsample_in_bottleneck=False, depths=[1, 2]), images(3, 22, 35))):
        kind = hf.ResNetModel if name == 'resnet_model' else hf.ResNetForImageClassification
        model = shaken(kind(hf.ResNetConfig(**small | changes)))
        draw = torch.Generator().manual_seed(8)
        for key, buffer in model.named_buffers():
            if key.endswith('running_mean'):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=draw))
            elif key.endswith('running_var'):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=draw))
        names = ('last_hidden_state', 'pooler_output') if kind is hf.ResNetModel else ('logits',)
        record(name, model, dict(pixel_values=image), dict.fromkeys(names), {} if changes else stepped(model, image))


def stepped(model, images):
    """{'stepped/NAME': weight} after a step of SGD with a learning rate of 0.1 on the classes 0, 1, 2."""
    model = copy.deepcopy(model).double().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.nn.functional.cross_entropy(model(pixel_values=images.double()).logits, torch.arange(3)).backward()
    optimizer.step()
    with tempfile.TemporaryDirectory() as place:
        model.save_pretrained(place)
        return {f'stepped/{name}': x for name, x in load_file(f'{place}/model.safetensors').items()}


if __name__ == '__main__':
    makers = {make.__name__: make for make in (bert, roberta, albert, electra, distilbert, gpt2, t5, bart, vit, deit, dinov2,
                                               mae, swin, resnet)}
    for name in sys.argv[1:] or makers:
        torch.manual_seed(0)
        makers[name]()
