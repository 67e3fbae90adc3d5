"""The models of torchaudio 2.11 and the transforms that models are built with, each with the inputs of its forward.

Two seconds of audio in most cases, one where a recurrent loop runs over time; the transformers of wav2vec 2.0, HuBERT
and WavLM keep two layers. Left out: the CTC decoders and RNNTLoss, which need compiled libraries of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torchaudio import models, transforms

_RATE_HZ = 16_000
_FRAMES = 99  # what the convolutions of HuBERT make of two seconds
_KEPT_LAYERS = 2
_SOURCES = ["drums", "bass", "other", "vocals"]

Entry = tuple[Callable[[], nn.Module], Callable[[], Any]]


def _audio(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    """One waveform or feature tensor of this shape."""
    return lambda: (torch.randn(shape),)


def _lengths(*lengths: int) -> Tensor:
    return torch.tensor(lengths)


def _cut(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The model with the first layers of its transformer only."""

    def build() -> nn.Module:
        whole: Any = make()
        transformer = getattr(whole, "wav2vec2", whole).encoder.transformer
        transformer.layers = transformer.layers[:_KEPT_LAYERS]
        return whole

    return build


def _speech(make: Callable[[], nn.Module]) -> Entry:
    """A speech encoder with two clips of different lengths."""
    return _cut(make), lambda: (torch.randn(2, 2 * _RATE_HZ), _lengths(2 * _RATE_HZ, _RATE_HZ))


def _pretraining(make: Callable[[], nn.Module]) -> Entry:
    """A HuBERT that predicts the cluster of each masked frame."""
    return _cut(make), lambda: (torch.randn(2, 2 * _RATE_HZ), torch.randint(100, (2, _FRAMES)))


def _sources(make: Callable[[list[str]], nn.Module]) -> Entry:
    """A music separator with one second of stereo."""
    return lambda: make(_SOURCES), _audio(1, 2, 44_100)


def _transducer(num_symbols: int = 4097) -> Callable[[], Any]:
    """Features with the four frames of right context, and the symbols spoken."""
    return lambda: (
        torch.randn(2, 132, 80), _lengths(132, 100), torch.randint(num_symbols, (2, 20)), _lengths(20, 15)
    )  # fmt: skip


def _small_transducer() -> nn.Module:
    return models.emformer_rnnt_model(
        input_dim=80, encoding_dim=1024, num_symbols=257, segment_length=16, right_context_length=4,
        time_reduction_input_dim=128, time_reduction_stride=4, transformer_num_heads=8, transformer_ffn_dim=2048,
        transformer_num_layers=2, transformer_dropout=0.1, transformer_activation="gelu",
        transformer_left_context_length=30, transformer_max_memory_size=0,
        transformer_weight_init_scale_strategy="depthwise", transformer_tanh_on_mem=True, symbol_embedding_dim=512,
        num_lstm_layers=1, lstm_layer_norm=True, lstm_layer_norm_epsilon=1e-3, lstm_dropout=0.3,
    )  # fmt: skip


_CONFORMER = {"input_dim": 256, "num_heads": 4, "ffn_dim": 1024, "num_layers": 2, "depthwise_conv_kernel_size": 31}
_EMFORMER = {"input_dim": 512, "num_heads": 8, "ffn_dim": 2048, "num_layers": 2, "segment_length": 4}

_SPEECH = {
    name: _speech(getattr(models, name))
    for name in (
        "wav2vec2_base", "wav2vec2_large", "wav2vec2_large_lv60k", "wav2vec2_xlsr_300m", "wav2vec2_xlsr_1b",
        "wav2vec2_xlsr_2b", "hubert_base", "hubert_large", "hubert_xlarge",
    )
}  # fmt: skip
_PRETRAINING = {
    name: _pretraining(getattr(models, name))
    for name in ("hubert_pretrain_base", "hubert_pretrain_large", "hubert_pretrain_xlarge")
}

_MODELS: dict[str, Entry] = {
    "wavlm_base": (_cut(models.wavlm_base), _audio(2, 2 * _RATE_HZ)),  # takes no lengths
    "wavlm_large": (_cut(models.wavlm_large), _audio(2, 2 * _RATE_HZ)),
    "Conformer": (lambda: models.Conformer(**_CONFORMER),
                  lambda: (torch.randn(2, 200, 256), _lengths(200, 150))),
    "Conformer_group_norm": (lambda: models.Conformer(**_CONFORMER, use_group_norm=True, convolution_first=True),
                             lambda: (torch.randn(2, 200, 256), _lengths(200, 150))),
    "ConvTasNet": (models.ConvTasNet, _audio(2, 1, 2 * _RATE_HZ)),
    "conv_tasnet_base": (models.conv_tasnet_base, _audio(2, 1, 2 * _RATE_HZ)),
    "DeepSpeech": (lambda: models.DeepSpeech(n_feature=161), _audio(2, 1, 200, 161)),
    "Emformer": (lambda: models.Emformer(**_EMFORMER, left_context_length=20, right_context_length=1),
                 lambda: (torch.randn(2, 101, 512), _lengths(101, 81))),
    "Emformer_memory": (lambda: models.Emformer(**_EMFORMER, right_context_length=1, max_memory_size=4),
                        lambda: (torch.randn(2, 101, 512), _lengths(101, 81))),
    "emformer_rnnt_model": (_small_transducer, _transducer(257)),
    "emformer_rnnt_base": (lambda: models.emformer_rnnt_base(num_symbols=4097), _transducer()),
    "RNNTBeamSearch": (lambda: models.RNNTBeamSearch(_small_transducer(), blank=256, step_max_tokens=4),
                       lambda: (torch.randn(1, 36, 80), _lengths(36), 4)),
    "hdemucs_low": _sources(models.hdemucs_low),
    "hdemucs_medium": _sources(models.hdemucs_medium),
    "hdemucs_high": _sources(models.hdemucs_high),
    "squim_objective_base": (models.squim_objective_base, _audio(1, _RATE_HZ)),
    "squim_subjective_base": (models.squim_subjective_base,
                              lambda: (torch.randn(1, _RATE_HZ), torch.randn(1, _RATE_HZ))),
    "Tacotron2": (models.Tacotron2, lambda: (torch.randint(148, (2, 40)), _lengths(40, 30), torch.randn(2, 80, 100),
                                             _lengths(100, 80))),
    "Wav2Letter": (models.Wav2Letter, _audio(2, 1, 2 * _RATE_HZ)),
    "Wav2Letter_mfcc": (lambda: models.Wav2Letter(input_type="mfcc", num_features=40), _audio(2, 40, 400)),
    "WaveRNN": (lambda: models.WaveRNN(upsample_scales=[5, 5, 8], n_classes=512, hop_length=200),
                lambda: (torch.randn(2, 1, 16 * 200), torch.randn(2, 1, 128, 20))),
}  # fmt: skip

_SPECTRUM = (2, 201, 161)  # two seconds, n_fft 400, hop 200
_TRANSFORMS: dict[str, Entry] = {
    "Spectrogram": (transforms.Spectrogram, _audio(2, 2 * _RATE_HZ)),
    "InverseSpectrogram": (transforms.InverseSpectrogram, lambda: (torch.randn(_SPECTRUM, dtype=torch.complex64),)),
    "MelSpectrogram": (transforms.MelSpectrogram, _audio(2, 2 * _RATE_HZ)),
    "MFCC": (transforms.MFCC, _audio(2, 2 * _RATE_HZ)),
    "LFCC": (transforms.LFCC, _audio(2, 2 * _RATE_HZ)),
    "MelScale": (transforms.MelScale, _audio(*_SPECTRUM)),
    "AmplitudeToDB": (transforms.AmplitudeToDB, lambda: (torch.rand(_SPECTRUM),)),
    "GriffinLim": (lambda: transforms.GriffinLim(n_iter=4), lambda: (torch.rand(_SPECTRUM),)),
    "Resample": (lambda: transforms.Resample(44_100, _RATE_HZ), _audio(2, 44_100)),
    "TimeStretch": (lambda: transforms.TimeStretch(n_freq=201, fixed_rate=1.2),
                    lambda: (torch.randn(_SPECTRUM, dtype=torch.complex64),)),
    "FrequencyMasking": (lambda: transforms.FrequencyMasking(30), _audio(*_SPECTRUM)),
    "TimeMasking": (lambda: transforms.TimeMasking(30), _audio(*_SPECTRUM)),
    "SpecAugment": (lambda: transforms.SpecAugment(2, 30, 2, 30), _audio(*_SPECTRUM)),
    "ComputeDeltas": (transforms.ComputeDeltas, _audio(2, 40, 161)),
    "SlidingWindowCmn": (lambda: transforms.SlidingWindowCmn(cmn_window=30), _audio(2, 100, 40)),
    "SpectralCentroid": (lambda: transforms.SpectralCentroid(_RATE_HZ), _audio(2, 2 * _RATE_HZ)),
    "PitchShift": (lambda: transforms.PitchShift(_RATE_HZ, 4), _audio(2, _RATE_HZ)),
    "MuLawEncoding": (transforms.MuLawEncoding, _audio(2, 2 * _RATE_HZ)),
    "MuLawDecoding": (transforms.MuLawDecoding, lambda: (torch.randint(256, (2, 2 * _RATE_HZ)),)),
    "FFTConvolve": (transforms.FFTConvolve, lambda: (torch.randn(2, 2 * _RATE_HZ), torch.randn(2, 4000))),
    "AddNoise": (transforms.AddNoise,
                 lambda: (torch.randn(2, _RATE_HZ), torch.randn(2, _RATE_HZ), torch.tensor([10.0, 5.0]))),
    "Preemphasis": (transforms.Preemphasis, _audio(2, 2 * _RATE_HZ)),
    "PSD": (transforms.PSD, lambda: (torch.randn(6, 201, 161, dtype=torch.complex64), torch.rand(201, 161))),
    "MVDR": (lambda: transforms.MVDR(ref_channel=0),
             lambda: (torch.randn(6, 201, 161, dtype=torch.complex64), torch.rand(201, 161), torch.rand(201, 161))),
}  # fmt: skip

MODELS: dict[str, Entry] = {**_SPEECH, **_PRETRAINING, **_MODELS, **_TRANSFORMS}
