"""Layers, with Keras' names: Modules that create their variables on the first call."""

from typing import TYPE_CHECKING

from tracegraph.api.absent import publish
from tracegraph.layers import (
    activations,
    attention,
    base,
    core,
    drawing,
    features,
    images,
    merging,
    noise,
    normalisation,
    recurrent,
    sequential,
    shaping,
    windows,
    wrappers,
)
from tracegraph.layers.activations import (
    ELU as ELU,
    Activation as Activation,
    LeakyReLU as LeakyReLU,
    PReLU as PReLU,
    ReLU as ReLU,
    Softmax as Softmax,
)
from tracegraph.layers.attention.grouped import GroupQueryAttention as GroupQueryAttention
from tracegraph.layers.attention.many_heads import MultiHeadAttention as MultiHeadAttention
from tracegraph.layers.attention.one_head import (
    AdditiveAttention as AdditiveAttention,
    Attention as Attention,
)
from tracegraph.layers.base import Layer as Layer
from tracegraph.layers.core import (
    Dense as Dense,
    EinsumDense as EinsumDense,
    Embedding as Embedding,
    Identity as Identity,
    Lambda as Lambda,
    Masking as Masking,
    Rescaling as Rescaling,
    ReversibleEmbedding as ReversibleEmbedding,
)
from tracegraph.layers.features.categories import CategoryEncoding as CategoryEncoding
from tracegraph.layers.features.ranges import Discretization as Discretization
from tracegraph.layers.features.spectrograms import (
    MelSpectrogram as MelSpectrogram,
    STFTSpectrogram as STFTSpectrogram,
)
from tracegraph.layers.features.vocabularies import IntegerLookup as IntegerLookup
from tracegraph.layers.images.at_random import RandomCrop as RandomCrop, RandomFlip as RandomFlip
from tracegraph.layers.images.colours import (
    RandomBrightness as RandomBrightness,
    RandomContrast as RandomContrast,
)
from tracegraph.layers.images.compositions import (
    AugMix as AugMix,
    RandAugment as RandAugment,
    RandomColorJitter as RandomColorJitter,
)
from tracegraph.layers.images.levels import (
    AutoContrast as AutoContrast,
    Equalization as Equalization,
    RandomPosterization as RandomPosterization,
    Solarization as Solarization,
)
from tracegraph.layers.images.mixing import (
    CutMix as CutMix,
    MixUp as MixUp,
    RandomErasing as RandomErasing,
)
from tracegraph.layers.images.moving import (
    RandomElasticTransform as RandomElasticTransform,
    RandomPerspective as RandomPerspective,
    RandomRotation as RandomRotation,
    RandomShear as RandomShear,
    RandomTranslation as RandomTranslation,
    RandomZoom as RandomZoom,
)
from tracegraph.layers.images.sizes import CenterCrop as CenterCrop, Resizing as Resizing
from tracegraph.layers.images.tints import (
    RandomColorDegeneration as RandomColorDegeneration,
    RandomGaussianBlur as RandomGaussianBlur,
    RandomGrayscale as RandomGrayscale,
    RandomHue as RandomHue,
    RandomInvert as RandomInvert,
    RandomSaturation as RandomSaturation,
    RandomSharpness as RandomSharpness,
)
from tracegraph.layers.merging import (
    Add as Add,
    Average as Average,
    Concatenate as Concatenate,
    Dot as Dot,
    Maximum as Maximum,
    Minimum as Minimum,
    Multiply as Multiply,
    Subtract as Subtract,
    add as add,
    average as average,
    concatenate as concatenate,
    dot as dot,
    maximum as maximum,
    minimum as minimum,
    multiply as multiply,
    subtract as subtract,
)
from tracegraph.layers.noise import (
    ActivityRegularization as ActivityRegularization,
    AlphaDropout as AlphaDropout,
    Dropout as Dropout,
    GaussianDropout as GaussianDropout,
    GaussianNoise as GaussianNoise,
    SpatialDropout1D as SpatialDropout1D,
    SpatialDropout2D as SpatialDropout2D,
    SpatialDropout3D as SpatialDropout3D,
)
from tracegraph.layers.normalisation.adapted import Normalization as Normalization
from tracegraph.layers.normalisation.batch import BatchNormalization as BatchNormalization
from tracegraph.layers.normalisation.examples import (
    GroupNormalization as GroupNormalization,
    LayerNormalization as LayerNormalization,
    RMSNormalization as RMSNormalization,
    UnitNormalization as UnitNormalization,
)
from tracegraph.layers.normalisation.spectral import SpectralNormalization as SpectralNormalization
from tracegraph.layers.recurrent.bidirectional import Bidirectional as Bidirectional
from tracegraph.layers.recurrent.cells import (
    GRUCell as GRUCell,
    LSTMCell as LSTMCell,
    SimpleRNNCell as SimpleRNNCell,
    StackedRNNCells as StackedRNNCells,
)
from tracegraph.layers.recurrent.convolutions import (
    ConvLSTM1D as ConvLSTM1D,
    ConvLSTM2D as ConvLSTM2D,
    ConvLSTM3D as ConvLSTM3D,
)
from tracegraph.layers.recurrent.kinds import GRU as GRU, LSTM as LSTM, SimpleRNN as SimpleRNN
from tracegraph.layers.recurrent.rnn import RNN as RNN
from tracegraph.layers.sequential import Input as Input, Sequential as Sequential
from tracegraph.layers.shaping import (
    Cropping1D as Cropping1D,
    Cropping2D as Cropping2D,
    Cropping3D as Cropping3D,
    Flatten as Flatten,
    Permute as Permute,
    RepeatVector as RepeatVector,
    Reshape as Reshape,
    UpSampling1D as UpSampling1D,
    UpSampling2D as UpSampling2D,
    UpSampling3D as UpSampling3D,
    ZeroPadding1D as ZeroPadding1D,
    ZeroPadding2D as ZeroPadding2D,
    ZeroPadding3D as ZeroPadding3D,
)
from tracegraph.layers.windows.convolutions import (
    Conv1D as Conv1D,
    Conv1DTranspose as Conv1DTranspose,
    Conv2D as Conv2D,
    Conv2DTranspose as Conv2DTranspose,
    Conv3D as Conv3D,
    Conv3DTranspose as Conv3DTranspose,
    Convolution1D as Convolution1D,
    Convolution1DTranspose as Convolution1DTranspose,
    Convolution2D as Convolution2D,
    Convolution2DTranspose as Convolution2DTranspose,
    Convolution3D as Convolution3D,
    Convolution3DTranspose as Convolution3DTranspose,
    DepthwiseConv1D as DepthwiseConv1D,
    DepthwiseConv2D as DepthwiseConv2D,
    SeparableConv1D as SeparableConv1D,
    SeparableConv2D as SeparableConv2D,
    SeparableConvolution1D as SeparableConvolution1D,
    SeparableConvolution2D as SeparableConvolution2D,
)
from tracegraph.layers.windows.pooling import (
    AdaptiveAveragePooling1D as AdaptiveAveragePooling1D,
    AdaptiveAveragePooling2D as AdaptiveAveragePooling2D,
    AdaptiveAveragePooling3D as AdaptiveAveragePooling3D,
    AdaptiveMaxPooling1D as AdaptiveMaxPooling1D,
    AdaptiveMaxPooling2D as AdaptiveMaxPooling2D,
    AdaptiveMaxPooling3D as AdaptiveMaxPooling3D,
    AveragePooling1D as AveragePooling1D,
    AveragePooling2D as AveragePooling2D,
    AveragePooling3D as AveragePooling3D,
    AvgPool1D as AvgPool1D,
    AvgPool2D as AvgPool2D,
    AvgPool3D as AvgPool3D,
    GlobalAveragePooling1D as GlobalAveragePooling1D,
    GlobalAveragePooling2D as GlobalAveragePooling2D,
    GlobalAveragePooling3D as GlobalAveragePooling3D,
    GlobalAvgPool1D as GlobalAvgPool1D,
    GlobalAvgPool2D as GlobalAvgPool2D,
    GlobalAvgPool3D as GlobalAvgPool3D,
    GlobalMaxPool1D as GlobalMaxPool1D,
    GlobalMaxPool2D as GlobalMaxPool2D,
    GlobalMaxPool3D as GlobalMaxPool3D,
    GlobalMaxPooling1D as GlobalMaxPooling1D,
    GlobalMaxPooling2D as GlobalMaxPooling2D,
    GlobalMaxPooling3D as GlobalMaxPooling3D,
    MaxPool1D as MaxPool1D,
    MaxPool2D as MaxPool2D,
    MaxPool3D as MaxPool3D,
    MaxPooling1D as MaxPooling1D,
    MaxPooling2D as MaxPooling2D,
    MaxPooling3D as MaxPooling3D,
)
from tracegraph.layers.wrappers import TimeDistributed as TimeDistributed

# Submodules are not public names.
del activations, attention, base, core, merging, drawing, features, images, noise, normalisation
del recurrent, sequential, shaping, windows, wrappers

if not TYPE_CHECKING:  # to a type checker, names imported as themselves are public
    __all__ = [
        name
        for name, value in globals().items()
        if getattr(value, "__module__", "").startswith(__name__)
    ]
    # They are pickled, and shown, under the names that users import.
    for _name in __all__:
        globals()[_name].__module__ = __name__
    del _name

publish(__name__)
