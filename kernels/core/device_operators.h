// The operators that libofsdp_cuda.so has kernels for, for some problems at least. A host without a
// GPU plans by this list; tests/gpu/operators_test.cpp compares it with the library, operator by
// operator.
#pragma once

#include <string>
#include <string_view>

namespace ofsdp::kernels {

// Full names (OpDef::full_name), each between two spaces.
inline constexpr std::string_view kDeviceOperators =
    " Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool"
    " BatchNormalization Bernoulli BitCast BitShift BitwiseAnd BitwiseNot BitwiseOr"
    " BitwiseXor Cast CastLike Ceil Celu CenterCropPad Clip Col2Im Compress Concat"
    " ConstantOfShape Conv ConvTranspose Cos Cosh CumProd CumSum DFT DepthToSpace Det Div"
    " Dropout Einsum Elu Equal Erf Exp Expand Floor GRU Gather GatherElements GatherND Gelu"
    " Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample"
    " GroupNormalization HardSigmoid HardSwish Hardmax InstanceNormalization IsInf IsNaN LRN"
    " LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization"
    " LpPool MatMul Max MaxPool MaxUnpool Mean MeanVarianceNormalization Min Mish Mod Mul"
    " Multinomial Neg NegativeLogLikelihoodLoss Not OneHot Or PRelu Pad Pow RMSNormalization"
    " RNN RandomNormal RandomNormalLike RandomUniform RandomUniformLike Reciprocal ReduceL1"
    " ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd"
    " ReduceSum ReduceSumSquare Relu Resize ReverseSequence RoiAlign RotaryEmbedding Round"
    " ScatterElements ScatterND Selu Shrink Sigmoid Sign SimplifiedLayerNormalization Sin"
    " Sinh Slice Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split Sqrt"
    " Sub Sum Swish Tan Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Where"
    " Xor ai.onnx.preview.training.Adagrad ai.onnx.preview.training.Adam"
    " ai.onnx.preview.training.Momentum com.microsoft.BiasGelu com.microsoft.BiasSplitGelu"
    " com.microsoft.FastGelu com.microsoft.FusedMatMul com.microsoft.GatherBlockQuantized"
    " com.microsoft.Gelu com.microsoft.LayerNormalization com.microsoft.MatMulNBits"
    " com.microsoft.QuickGelu com.microsoft.RotaryEmbedding"
    " com.microsoft.SimplifiedLayerNormalization com.microsoft.SkipLayerNormalization"
    " com.microsoft.SkipSimplifiedLayerNormalization ofsdp.AbsGrad ofsdp.ArgmaxMatches"
    " ofsdp.AttentionGrad ofsdp.AttentionWithStatistics ofsdp.AveragePoolGrad"
    " ofsdp.BatchNormalizationGrad ofsdp.BceWithLogitsLoss ofsdp.BceWithLogitsLossGrad"
    " ofsdp.CeluGrad ofsdp.Chain ofsdp.ChainGrad ofsdp.ChannelDots ofsdp.ChannelStatistics"
    " ofsdp.ClipGrad ofsdp.Col2ImGrad ofsdp.ContrastiveLoss ofsdp.ContrastiveLossGrad"
    " ofsdp.ContrastiveTerms ofsdp.ConvGradInput ofsdp.ConvGradWeights ofsdp.Copy"
    " ofsdp.CtcLoss ofsdp.CtcLossGrad ofsdp.CumProdGrad ofsdp.DetGrad ofsdp.DistillationLoss"
    " ofsdp.DistillationLossGrad ofsdp.DropoutGrad ofsdp.EinsumGrad ofsdp.EluGrad"
    " ofsdp.ErfGrad ofsdp.FakeQuantize ofsdp.FakeQuantizeGrad ofsdp.FakeQuantizeScaleGrad"
    " ofsdp.FoundIndices ofsdp.FoundUnique ofsdp.GRUGrad ofsdp.GatherGrad ofsdp.GatherNDGrad"
    " ofsdp.GeluGrad ofsdp.GemmEpilogue ofsdp.GridSampleGradGrid ofsdp.GridSampleGradInput"
    " ofsdp.GroupNormalizationGrad ofsdp.HardSigmoidGrad ofsdp.HardSwishGrad ofsdp.JoinRows"
    " ofsdp.JoinedNormalizationGrad ofsdp.JoinedStatistics ofsdp.KeepCounted ofsdp.LRNGrad"
    " ofsdp.LSTMGrad ofsdp.LayerNormalizationGrad ofsdp.LeakyReluGrad"
    " ofsdp.LinearCrossEntropy ofsdp.LogSoftmaxGrad ofsdp.LpPoolGrad ofsdp.MatMul"
    " ofsdp.MatMulNBitsGrad ofsdp.MaxPoolGrad ofsdp.MeasureClasses ofsdp.MeasureCtc"
    " ofsdp.MeasureValues ofsdp.MishGrad ofsdp.MseLoss ofsdp.MseLossGrad"
    " ofsdp.NarrowCrossEntropyLoss ofsdp.NarrowCrossEntropyLossGrad ofsdp.NllLossGrad"
    " ofsdp.PadGrad ofsdp.RNNGrad ofsdp.ReduceProdGrad ofsdp.ReluGrad ofsdp.Reorder"
    " ofsdp.RequireCount ofsdp.ResizeGrad ofsdp.RoiAlignGrad ofsdp.RoundedLSTM"
    " ofsdp.RoundedLSTMGrad ofsdp.ScatterIndices ofsdp.SeluGrad ofsdp.ShrinkGrad"
    " ofsdp.SigmoidGrad ofsdp.SliceGrad ofsdp.SoftmaxCrossEntropyLossGrad"
    " ofsdp.SoftmaxCrossEntropyLossWithGradient ofsdp.SoftmaxGrad ofsdp.SoftplusGrad"
    " ofsdp.SoftsignGrad ofsdp.StoredMatMul ofsdp.SumTo ofsdp.SwishGrad ofsdp.TanhGrad"
    " ofsdp.ThresholdedReluGrad ofsdp.UnitRows ofsdp.UnitRowsGrad ";

inline bool has_device_kernel(const std::string& operator_name) {
  return kDeviceOperators.find(" " + operator_name + " ") != std::string_view::npos;
}

}  // namespace ofsdp::kernels
