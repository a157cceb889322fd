"""Layers, with Keras' names: Modules that make their variables when they are called first."""

from tracegraph.api.public_modules import publish
from tracegraph.layers import (
    activations,
    attention,
    base,
    convolutions,
    core,
    merging,
    noise,
    normalisation,
    pooling,
    recurrent,
    recurrent_convolutions,
    sequential,
    shaping,
    wrappers,
)
from tracegraph.layers.activations import ELU as ELU
from tracegraph.layers.activations import Activation as Activation
from tracegraph.layers.activations import LeakyReLU as LeakyReLU
from tracegraph.layers.activations import PReLU as PReLU
from tracegraph.layers.activations import ReLU as ReLU
from tracegraph.layers.activations import Softmax as Softmax
from tracegraph.layers.attention import AdditiveAttention as AdditiveAttention
from tracegraph.layers.attention import Attention as Attention
from tracegraph.layers.attention import MultiHeadAttention as MultiHeadAttention
from tracegraph.layers.base import Layer as Layer
from tracegraph.layers.convolutions import Conv1D as Conv1D
from tracegraph.layers.convolutions import Conv1DTranspose as Conv1DTranspose
from tracegraph.layers.convolutions import Conv2D as Conv2D
from tracegraph.layers.convolutions import Conv2DTranspose as Conv2DTranspose
from tracegraph.layers.convolutions import Conv3D as Conv3D
from tracegraph.layers.convolutions import Conv3DTranspose as Conv3DTranspose
from tracegraph.layers.convolutions import Convolution1D as Convolution1D
from tracegraph.layers.convolutions import Convolution2D as Convolution2D
from tracegraph.layers.convolutions import Convolution3D as Convolution3D
from tracegraph.layers.convolutions import DepthwiseConv1D as DepthwiseConv1D
from tracegraph.layers.convolutions import DepthwiseConv2D as DepthwiseConv2D
from tracegraph.layers.convolutions import SeparableConv1D as SeparableConv1D
from tracegraph.layers.convolutions import SeparableConv2D as SeparableConv2D
from tracegraph.layers.core import Dense as Dense
from tracegraph.layers.core import EinsumDense as EinsumDense
from tracegraph.layers.core import Embedding as Embedding
from tracegraph.layers.core import Identity as Identity
from tracegraph.layers.core import Lambda as Lambda
from tracegraph.layers.core import Rescaling as Rescaling
from tracegraph.layers.merging import Add as Add
from tracegraph.layers.merging import Average as Average
from tracegraph.layers.merging import Concatenate as Concatenate
from tracegraph.layers.merging import Dot as Dot
from tracegraph.layers.merging import Maximum as Maximum
from tracegraph.layers.merging import Minimum as Minimum
from tracegraph.layers.merging import Multiply as Multiply
from tracegraph.layers.merging import Subtract as Subtract
from tracegraph.layers.merging import add as add
from tracegraph.layers.merging import average as average
from tracegraph.layers.merging import concatenate as concatenate
from tracegraph.layers.merging import dot as dot
from tracegraph.layers.merging import maximum as maximum
from tracegraph.layers.merging import minimum as minimum
from tracegraph.layers.merging import multiply as multiply
from tracegraph.layers.merging import subtract as subtract
from tracegraph.layers.noise import ActivityRegularization as ActivityRegularization
from tracegraph.layers.noise import AlphaDropout as AlphaDropout
from tracegraph.layers.noise import Dropout as Dropout
from tracegraph.layers.noise import GaussianDropout as GaussianDropout
from tracegraph.layers.noise import GaussianNoise as GaussianNoise
from tracegraph.layers.noise import SpatialDropout1D as SpatialDropout1D
from tracegraph.layers.noise import SpatialDropout2D as SpatialDropout2D
from tracegraph.layers.noise import SpatialDropout3D as SpatialDropout3D
from tracegraph.layers.normalisation import BatchNormalization as BatchNormalization
from tracegraph.layers.normalisation import GroupNormalization as GroupNormalization
from tracegraph.layers.normalisation import LayerNormalization as LayerNormalization
from tracegraph.layers.normalisation import RMSNormalization as RMSNormalization
from tracegraph.layers.normalisation import UnitNormalization as UnitNormalization
from tracegraph.layers.pooling import AdaptiveAveragePooling1D as AdaptiveAveragePooling1D
from tracegraph.layers.pooling import AdaptiveAveragePooling2D as AdaptiveAveragePooling2D
from tracegraph.layers.pooling import AdaptiveAveragePooling3D as AdaptiveAveragePooling3D
from tracegraph.layers.pooling import AdaptiveMaxPooling1D as AdaptiveMaxPooling1D
from tracegraph.layers.pooling import AdaptiveMaxPooling2D as AdaptiveMaxPooling2D
from tracegraph.layers.pooling import AdaptiveMaxPooling3D as AdaptiveMaxPooling3D
from tracegraph.layers.pooling import AveragePooling1D as AveragePooling1D
from tracegraph.layers.pooling import AveragePooling2D as AveragePooling2D
from tracegraph.layers.pooling import AveragePooling3D as AveragePooling3D
from tracegraph.layers.pooling import AvgPool1D as AvgPool1D
from tracegraph.layers.pooling import AvgPool2D as AvgPool2D
from tracegraph.layers.pooling import AvgPool3D as AvgPool3D
from tracegraph.layers.pooling import GlobalAveragePooling1D as GlobalAveragePooling1D
from tracegraph.layers.pooling import GlobalAveragePooling2D as GlobalAveragePooling2D
from tracegraph.layers.pooling import GlobalAveragePooling3D as GlobalAveragePooling3D
from tracegraph.layers.pooling import GlobalAvgPool1D as GlobalAvgPool1D
from tracegraph.layers.pooling import GlobalAvgPool2D as GlobalAvgPool2D
from tracegraph.layers.pooling import GlobalAvgPool3D as GlobalAvgPool3D
from tracegraph.layers.pooling import GlobalMaxPool1D as GlobalMaxPool1D
from tracegraph.layers.pooling import GlobalMaxPool2D as GlobalMaxPool2D
from tracegraph.layers.pooling import GlobalMaxPool3D as GlobalMaxPool3D
from tracegraph.layers.pooling import GlobalMaxPooling1D as GlobalMaxPooling1D
from tracegraph.layers.pooling import GlobalMaxPooling2D as GlobalMaxPooling2D
from tracegraph.layers.pooling import GlobalMaxPooling3D as GlobalMaxPooling3D
from tracegraph.layers.pooling import MaxPool1D as MaxPool1D
from tracegraph.layers.pooling import MaxPool2D as MaxPool2D
from tracegraph.layers.pooling import MaxPool3D as MaxPool3D
from tracegraph.layers.pooling import MaxPooling1D as MaxPooling1D
from tracegraph.layers.pooling import MaxPooling2D as MaxPooling2D
from tracegraph.layers.pooling import MaxPooling3D as MaxPooling3D
from tracegraph.layers.recurrent import GRU as GRU
from tracegraph.layers.recurrent import LSTM as LSTM
from tracegraph.layers.recurrent import RNN as RNN
from tracegraph.layers.recurrent import GRUCell as GRUCell
from tracegraph.layers.recurrent import LSTMCell as LSTMCell
from tracegraph.layers.recurrent import SimpleRNN as SimpleRNN
from tracegraph.layers.recurrent import SimpleRNNCell as SimpleRNNCell
from tracegraph.layers.recurrent import StackedRNNCells as StackedRNNCells
from tracegraph.layers.recurrent_convolutions import ConvLSTM1D as ConvLSTM1D
from tracegraph.layers.recurrent_convolutions import ConvLSTM2D as ConvLSTM2D
from tracegraph.layers.recurrent_convolutions import ConvLSTM3D as ConvLSTM3D
from tracegraph.layers.sequential import Input as Input
from tracegraph.layers.sequential import Sequential as Sequential
from tracegraph.layers.shaping import Cropping1D as Cropping1D
from tracegraph.layers.shaping import Cropping2D as Cropping2D
from tracegraph.layers.shaping import Cropping3D as Cropping3D
from tracegraph.layers.shaping import Flatten as Flatten
from tracegraph.layers.shaping import Permute as Permute
from tracegraph.layers.shaping import RepeatVector as RepeatVector
from tracegraph.layers.shaping import Reshape as Reshape
from tracegraph.layers.shaping import UpSampling1D as UpSampling1D
from tracegraph.layers.shaping import UpSampling2D as UpSampling2D
from tracegraph.layers.shaping import UpSampling3D as UpSampling3D
from tracegraph.layers.shaping import ZeroPadding1D as ZeroPadding1D
from tracegraph.layers.shaping import ZeroPadding2D as ZeroPadding2D
from tracegraph.layers.shaping import ZeroPadding3D as ZeroPadding3D
from tracegraph.layers.wrappers import Bidirectional as Bidirectional
from tracegraph.layers.wrappers import SpectralNormalization as SpectralNormalization
from tracegraph.layers.wrappers import TimeDistributed as TimeDistributed

# Modules are not public names.
del activations, attention, base, convolutions, core, merging, noise, normalisation, pooling
del recurrent, recurrent_convolutions, sequential, shaping, wrappers

__all__ = [
    "ELU",
    "GRU",
    "LSTM",
    "RNN",
    "Activation",
    "ActivityRegularization",
    "AdaptiveAveragePooling1D",
    "AdaptiveAveragePooling2D",
    "AdaptiveAveragePooling3D",
    "AdaptiveMaxPooling1D",
    "AdaptiveMaxPooling2D",
    "AdaptiveMaxPooling3D",
    "Add",
    "AdditiveAttention",
    "AlphaDropout",
    "Attention",
    "Average",
    "AveragePooling1D",
    "AveragePooling2D",
    "AveragePooling3D",
    "AvgPool1D",
    "AvgPool2D",
    "AvgPool3D",
    "BatchNormalization",
    "Bidirectional",
    "Concatenate",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "ConvLSTM1D",
    "ConvLSTM2D",
    "ConvLSTM3D",
    "Convolution1D",
    "Convolution2D",
    "Convolution3D",
    "Cropping1D",
    "Cropping2D",
    "Cropping3D",
    "Dense",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Dot",
    "Dropout",
    "EinsumDense",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GaussianDropout",
    "GaussianNoise",
    "GlobalAveragePooling1D",
    "GlobalAveragePooling2D",
    "GlobalAveragePooling3D",
    "GlobalAvgPool1D",
    "GlobalAvgPool2D",
    "GlobalAvgPool3D",
    "GlobalMaxPool1D",
    "GlobalMaxPool2D",
    "GlobalMaxPool3D",
    "GlobalMaxPooling1D",
    "GlobalMaxPooling2D",
    "GlobalMaxPooling3D",
    "GroupNormalization",
    "Identity",
    "Input",
    "LSTMCell",
    "Lambda",
    "Layer",
    "LayerNormalization",
    "LeakyReLU",
    "MaxPool1D",
    "MaxPool2D",
    "MaxPool3D",
    "MaxPooling1D",
    "MaxPooling2D",
    "MaxPooling3D",
    "Maximum",
    "Minimum",
    "MultiHeadAttention",
    "Multiply",
    "PReLU",
    "Permute",
    "RMSNormalization",
    "ReLU",
    "RepeatVector",
    "Rescaling",
    "Reshape",
    "SeparableConv1D",
    "SeparableConv2D",
    "Sequential",
    "SimpleRNN",
    "SimpleRNNCell",
    "Softmax",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
    "SpectralNormalization",
    "StackedRNNCells",
    "Subtract",
    "TimeDistributed",
    "UnitNormalization",
    "UpSampling1D",
    "UpSampling2D",
    "UpSampling3D",
    "ZeroPadding1D",
    "ZeroPadding2D",
    "ZeroPadding3D",
    "add",
    "average",
    "concatenate",
    "dot",
    "maximum",
    "minimum",
    "multiply",
    "subtract",
]

# They are pickled, and shown, by the names that users import.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name

publish(__name__)
