"""Records small models of Hugging Face transformers with what they compute, for tests/convert_test.py.

    pip install torch transformers sentencepiece protobuf        # several GB, in an environment of its own
    python tests/reference/record.py [NAME ...]      # models and tokenizers drawn anew, these or all; then record_encoders.py
    python tests/reference/exact.py [NAME ...]       # outputs, gradients and errors anew, of the weights and inputs as they are

A folder of a model has what save_pretrained writes, its weights in float32, and case.npz:

    input/NAME                    what the model is called with
    output/NAME                   what it answers, in float64
    direction/NAME                along which an output counts: float32 numbers as float64, 0 where the output is of padding
    gradient/NAME                 in float64, of the sum over outputs of output·direction, by the names in model.safetensors
    error/output/NAME             how far transformers is from that in float32: the largest difference where the output counts,
                                  as a share of the largest number there
    error/gradient/NAME           the same, as a share of the largest number of this gradient, or of 0.01 of the largest of all
                                  gradients where that is more
    half/NAME                     the first of the outputs, of the model in bfloat16
    prompt/NAME, greedy, beam     what is generated, and from what
    resized/NAME                  pixel_values of another size, and the outputs of them, in float32

A folder of a tokenizer has its files, and in ids.json what it makes of some texts.
Recorded with torch 2.13 and transformers 5.23.
"""

import copy
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
import transformers as hf
from exact import answers, complete, save

HERE = pathlib.Path(__file__).parent
LENGTH = 11  # of the rows: odd, shorter than what the models take


def shaken(model, scale=0.2):
    """The model with every parameter away from where it begins, so that each of them counts."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=draw))
    return model.eval()


def ids(vocab, *shape, seed=0):
    return torch.randint(1, vocab, shape, generator=torch.Generator().manual_seed(seed))


def padded(rows=3, length=LENGTH):
    """[3, length]: a whole row, one with padding behind and one with padding in front."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[1, length - 4:] = 0
    mask[2, :3] = 0
    return mask


def record(name, model, inputs, there, more=None):
    """Writes the folder of a model: outputs count where `there`, {output: [B, T] or None for all of it}, is 1."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    save(model, folder)
    (folder / 'generation_config.json').unlink(missing_ok=True)
    draw, arrays = torch.Generator().manual_seed(1), {f'input/{key}': x for key, x in inputs.items()}
    for key, x in answers(model, inputs, there).items():
        direction, mask = torch.randn(x.shape, generator=draw), there[key]
        direction = direction if mask is None else direction * (mask[..., None] if x.ndim == 3 else mask)
        arrays[f'direction/{key}'] = direction.double()
    first = next(iter(there))
    arrays |= (more or {}) | {f'half/{first}': answers(copy.deepcopy(model).bfloat16(), inputs, there)[first].float()}
    np.savez_compressed(folder / 'case.npz', **{key: x.detach().numpy() for key, x in arrays.items()})
    complete(folder)


def generated(model, steps=8, **prompts):
    """What the model goes on with, greedily and by a beam of 4 whose scores are sums of log-probabilities; the token that ends
    a text is one that ends some of these and not others, by both."""
    def outputs(end, beams):
        beam = dict(num_beams=beams, length_penalty=0.0, early_stopping=False) if beams > 1 else {}
        found = model.generate(**prompts, **beam, max_new_tokens=steps, do_sample=False, eos_token_id=end, pad_token_id=0)
        begin = 1 if model.config.is_encoder_decoder else prompts['input_ids'].shape[1]
        return torch.nn.functional.pad(found[:, begin:], (0, steps - found.shape[1] + begin))

    ended = lambda end: [sum(end in row for row in outputs(end, beams).tolist()) for beams in (1, 4)]
    rows = len(prompts['input_ids'])
    model.config.eos_token_id = next(end for end in range(1, 67) if all(0 < count < rows for count in ended(end)))
    return {**{f'prompt/{key}': x for key, x in prompts.items()}, 'greedy': outputs(model.config.eos_token_id, 1),
            'beam': outputs(model.config.eos_token_id, 4)}


def gpt2():
    small = dict(vocab_size=67, n_positions=24, n_embd=16, n_head=2, n_layer=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                 bos_token_id=0, eos_token_id=0)
    inputs = dict(input_ids=ids(67, 3, LENGTH), attention_mask=padded())
    there = dict.fromkeys(('logits', 'last_hidden_state'), padded())
    mask = torch.ones(8, 7, dtype=torch.long)
    mask[::2, :4] = 0  # transformers goes on at the right end
    model = shaken(hf.GPT2LMHeadModel(hf.GPT2Config(**small)), 0.3)
    more = generated(model, input_ids=ids(67, 8, 7, seed=2), attention_mask=mask)
    record('gpt2', model, inputs, there, more)
    other = hf.GPT2Config(**small | dict(
        n_inner=24, activation_function='relu', scale_attn_weights=False, layer_norm_epsilon=1e-2, tie_word_embeddings=False))
    record('gpt2_other', shaken(hf.GPT2LMHeadModel(other), 0.1), inputs, there)


def t5():
    small = dict(vocab_size=67, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=3, relative_attention_num_buckets=8,
                 relative_attention_max_distance=16, dropout_rate=0.0, decoder_start_token_id=0)
    decoder = torch.ones(3, 7, dtype=torch.long)
    decoder[1, 5:] = 0
    inputs = dict(input_ids=ids(67, 3, 21), attention_mask=padded(length=21), decoder_input_ids=ids(67, 3, 7, seed=3),
                  decoder_attention_mask=decoder)
    there = {'logits': decoder, 'last_hidden_state': decoder, 'encoder_last_hidden_state': padded(length=21)}
    sources = dict(input_ids=ids(67, 8, 9, seed=4), attention_mask=padded(8, 9))
    model = shaken(hf.T5ForConditionalGeneration(hf.T5Config(**small)))
    record('t5', model, inputs, there, generated(model, **sources))
    other = hf.T5Config(**small | dict(feed_forward_proj='gated-gelu', num_decoder_layers=1, tie_word_embeddings=False))
    model = hf.T5ForConditionalGeneration(other)
    model.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn(67, 16))  # as in the models of v1.1
    model = shaken(model)
    record('t5_gated', model, inputs, there, generated(model, **sources))


def marian():
    """With a table for both sides, and with one for each, where source and target have vocabularies of their own."""
    small = dict(vocab_size=67, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
                 decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=20, max_position_embeddings=24, dropout=0.0,
                 activation_function='silu', scale_embedding=True, decoder_start_token_id=0,
                 pad_token_id=0, eos_token_id=1, forced_eos_token_id=None)
    decoder = torch.ones(3, 7, dtype=torch.long)
    decoder[1, 5:] = 0
    inputs = dict(input_ids=ids(67, 3, LENGTH), attention_mask=padded(), decoder_input_ids=ids(41, 3, 7, seed=3),
                  decoder_attention_mask=decoder)
    there = {'logits': decoder}  # of hidden states the axis has another order
    record('marian', shaken(hf.MarianMTModel(hf.MarianConfig(**small))), inputs, there)
    other = hf.MarianConfig(**small | dict(
        decoder_vocab_size=41, share_encoder_decoder_embeddings=False, tie_word_embeddings=False))
    record('marian_two', shaken(hf.MarianMTModel(other)), inputs, there)


TEXTS = ('The quick brown fox', '  two  spaces,   three ', "don't, they'll; I'M 2026", 'line\n\nline\r\n\ttab',
         'Größe, żółć, İ, ﬁ',
         'Привет мир', '你好，世界', 'مرحبا بالعالم', 'हिन्दी', '👍🏽 👨‍👩‍👧 🇫🇷',
         'a\u00a0b\u2003c\u200bd', '', ' ', '<|endoftext|>key<|endoftext|>')


def gpt2_tokenizer():
    """GPT-2's two files, learnt from a little text, and the ids that its tokenizer gives TEXTS."""
    import tokenizers

    folder = HERE / 'gpt2_tokenizer'
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(['the three lines of the text that they then read ', *TEXTS[:6]], vocab_size=400,
                             special_tokens=['<|endoftext|>'])
    made.save_model(str(folder))
    theirs = hf.GPT2Tokenizer.from_pretrained(folder)
    save_ids(folder, {text: theirs(text)['input_ids'] for text in TEXTS})


def t5_tokenizer():
    """T5's file, a unigram model learnt from the same, and its ids."""
    import sentencepiece

    folder = HERE / 't5_tokenizer'
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(['the three lines of the text that they then read '] * 3 + list(TEXTS[:7])), vocab_size=60,
        model_prefix=str(folder / 'spiece'), pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2)
    (folder / 'spiece.vocab').unlink()
    theirs = hf.T5Tokenizer.from_pretrained(folder)
    save_ids(folder, {text: theirs(text)['input_ids'] for text in (*TEXTS, 'key <extra_id_0> the <extra_id_99>')})


def albert_tokenizer():
    """ALBERT's file, a unigram model with its special tokens, and its ids under several settings."""
    import sentencepiece

    texts = 'the three lines of the text that they then read key große zołc naive café'
    with tempfile.TemporaryDirectory() as place:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([texts] * 3 + [text.lower() for text in TEXTS[:8]] + list(TEXTS[:5])), vocab_size=80,
            model_prefix=f'{place}/spiece', pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, minloglevel=2,
            control_symbols=['[CLS]', '[SEP]', '[MASK]'])
        model = pathlib.Path(place, 'spiece.model').read_bytes()
    record_ids('albert_tokenizer', hf.AlbertTokenizer, {'spiece.model': model}, [
        {},
        {'tokenizer_config.json': {'do_lower_case': False, 'keep_accents': True}},
        {'tokenizer_config.json': {'add_prefix_space': False, 'cls_token': '[SEP]', 'sep_token': '[CLS]'}},
    ])


SPECIAL = ('[CLS] key [MASK][SEP] the [mask] [PAD]', '<s>key <mask></s>  <mask> the<pad> <unk>', 'THE [ENT] NewKey newkeys',
           'a' * 101, 'naïve\x07 \ufeffcafé', "'tis the line-end...")
PAIRS = (('The quick brown fox', 'don\'t [SEP] <mask> read'), ('', 'lines'), ('  key', ' '), ('你好', '👍🏽 three'))
MASK = {'content': '<mask>', 'lstrip': True, 'normalized': False, 'rstrip': False, 'single_word': False}


def bert_tokenizer():
    """BERT's vocab.txt, and the ids that its tokenizer gives under several settings in the files beside it.

    The pieces are those of a rule, as what `tokenizers` learns differs from run to run: the signs of some texts, and of each
    word its first letters and the rest.
    """
    words = ' '.join(['the three lines of the text that they then read key große zołc naive café', *TEXTS[:8],
                      *(text.lower() for text in TEXTS[:4])])
    signs, words = sorted({*words} - {*' \n\r\t'}), sorted(word for word in {*words.split()} if word.isalpha())
    pieces = [*signs, *(f'##{sign}' for sign in signs if sign.isalpha()), *(word[:3] for word in words),
              *(f'##{word[3:]}' for word in words)]
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(piece for piece in dict.fromkeys(pieces) if piece != '##')]
    new = len(pieces)
    added = {'[ENT]': new, 'NewKey': new + 1}
    described = lambda sign: {'content': sign, 'special': sign != 'NewKey', 'normalized': sign == 'NewKey', 'rstrip': False,
                              'lstrip': sign == '[MASK]', 'single_word': sign == 'NewKey'}
    decoder = {**{str(i): described(sign) for i, sign in enumerate(pieces[:5])},
               **{str(i): described(sign) for sign, i in added.items()}}
    record_ids('bert_tokenizer', hf.BertTokenizer, {'vocab.txt': '\n'.join(pieces) + '\n'}, [
        {},
        {'tokenizer_config.json': {'do_lower_case': False, 'strip_accents': True, 'tokenize_chinese_chars': False}},
        {'tokenizer_config.json': {'strip_accents': False, 'added_tokens_decoder': decoder}},
        {'tokenizer_config.json': {'do_lower_case': True, 'cls_token': '[CLS]'}, 'added_tokens.json': added,
         'special_tokens_map.json': {'cls_token': '[SEP]', 'sep_token': '[CLS]', 'additional_special_tokens': ['[ENT]']}},
    ])


def roberta_tokenizer():
    """RoBERTa's two files and its ids. BART's would be the same: transformers has one class for both."""
    import tokenizers

    assert hf.BartTokenizer is hf.RobertaTokenizer
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(['the three lines of the text that they then read ', *TEXTS[:6]], vocab_size=400,
                             special_tokens=['<s>', '<pad>', '</s>', '<unk>'])
    with tempfile.TemporaryDirectory() as place:
        made.save_model(place)
        files = {name: pathlib.Path(place, name).read_text() for name in ('vocab.json', 'merges.txt')}
    vocab = json.loads(files['vocab.json'])
    vocab |= {sign: len(vocab) + i for i, sign in enumerate(('<|endoftext|>', '<mask>'))}  # as in theirs
    described = {'mask_token': {'__type': 'AddedToken', **MASK}}
    record_ids('roberta_tokenizer', hf.RobertaTokenizer, files | {'vocab.json': json.dumps(vocab, ensure_ascii=False)}, [
        {'tokenizer_config.json': described},
        {'tokenizer_config.json': {'add_prefix_space': True, 'trim_offsets': False, **described}},
        {'special_tokens_map.json': {'mask_token': MASK, 'sep_token': '<pad>'}},
        {'tokenizer_config.json': {'mask_token': '<mask>', 'added_tokens_decoder': {
            str(vocab['<mask>']): {**MASK, 'lstrip': False, 'rstrip': True, 'special': True}}}},
    ])


def record_ids(name, kind, files, settings):
    """Writes the files of a tokenizer, and to ids.json, for each of `settings`, {file beside them: its object}, the ids and
    types of texts and of pairs with their special tokens."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file, contents in files.items():
        (folder / file).write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    cases = []
    for beside in settings:
        with tempfile.TemporaryDirectory() as place:
            shutil.copytree(folder, place, dirs_exist_ok=True)
            for file, contents in beside.items():
                pathlib.Path(place, file).write_text(json.dumps(contents))
            theirs = kind.from_pretrained(place)
        called = lambda theirs, *texts: [*theirs(*texts, return_token_type_ids=True).values()][:2]
        cases.append({'files': beside, 'mask': theirs.mask_token,
                      'texts': {text: called(theirs, text)[0] for text in (*TEXTS, *SPECIAL)},
                      'pairs': [[*pair, *called(theirs, *pair)] for pair in PAIRS]})
    (folder / 'ids.json').write_text(json.dumps(cases) + '\n')


def save_ids(folder, ids):
    (folder / 'ids.json').write_text(json.dumps(ids, indent=0) + '\n')


if __name__ == '__main__':
    makers = {make.__name__: make for make in (gpt2, t5, marian, gpt2_tokenizer, t5_tokenizer, bert_tokenizer,
                                               roberta_tokenizer, albert_tokenizer)}
    for name in sys.argv[1:] or makers:
        torch.manual_seed(0)
        makers[name]()
