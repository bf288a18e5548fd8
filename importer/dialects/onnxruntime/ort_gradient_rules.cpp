// The table of ort_gradients.h: which operand of a gradient operator of ONNX Runtime is which value
// of the forward operator, and which gradients it gives.
#include "importer/dialects/onnxruntime/ort_gradients.h"

namespace ofsdp::importer {
namespace {

using Kind = OrtOperand::Kind;

constexpr OrtOperand kDy{Kind::kGrad, 0};
constexpr OrtOperand in(size_t index) { return {Kind::kInput, index}; }
constexpr OrtOperand out(size_t index) { return {Kind::kOutput, index}; }
constexpr OrtOperand shape_of(size_t index) { return {Kind::kShape, index}; }

std::vector<OrtGradientRule> make_rules() {
  std::vector<OrtGradientRule> rules{
      {"ReluGrad", "Relu", {kDy, out(0)}, {0}},
      {"SigmoidGrad", "Sigmoid", {kDy, out(0)}, {0}},
      {"TanhGrad", "Tanh", {kDy, out(0)}, {0}},
      {"SinGrad", "Sin", {kDy, in(0)}, {0}},
      {"GeluGrad", "com.microsoft.Gelu", {kDy, in(0)}, {0}},
      {"FastGeluGrad", "com.microsoft.FastGelu", {kDy, in(0)}, {0}},
      {"QuickGeluGrad", "com.microsoft.QuickGelu", {kDy, in(0)}, {0}},
      {"BiasGeluGrad_dX", "com.microsoft.BiasGelu", {kDy, in(0), in(1)}, {0}},
      {"BiasFastGeluGrad_dX", "com.microsoft.FastGelu", {kDy, in(0), in(1)}, {0}},
      {"LeakyReluGrad", "LeakyRelu", {kDy, in(0)}, {0}},  // slopes agree: it is given Y
      {"SoftmaxGrad", "Softmax", {kDy, out(0)}, {0}},
      {"SoftmaxGrad_13", "Softmax", {kDy, out(0)}, {0}},
      {"LogSoftmaxGrad", "LogSoftmax", {kDy, out(0)}, {0}},
      {"LogSoftmaxGrad_13", "LogSoftmax", {kDy, out(0)}, {0}},
      {"DivGrad", "Div", {kDy, in(0), in(1)}, {0, 1}},
      {"ConvGrad", "Conv", {kDy, in(0), in(1)}, {0, 1, 2}},
      {"ConvTransposeGrad", "ConvTranspose", {kDy, in(0), in(1)}, {0, 1, 2}},
      {"MaxPoolGrad", "MaxPool", {kDy, out(1)}, {0}, 1},
      {"AveragePoolGrad", "AveragePool", {kDy}, {0}, -1, true},
      {"DropoutGrad", "Dropout", {kDy, out(1), in(1), in(2)}, {0}},
      {"GatherGrad", "Gather", {shape_of(0), in(1), kDy}, {0}},
      {"GatherElementsGrad", "GatherElements", {kDy, shape_of(0), in(1)}, {0}},
      {"GatherNDGrad", "GatherND", {shape_of(0), in(1), kDy}, {0}},
      {"SliceGrad", "Slice", {kDy, shape_of(0), in(1), in(2), in(3), in(4)}, {0}},
      {"LayerNormalizationGrad",
       "LayerNormalization",
       {kDy, in(0), in(1), out(1), out(2)},
       {0, 1, 2}},
      {"SimplifiedLayerNormalizationGrad",
       "SimplifiedLayerNormalization",
       {kDy, in(0), in(1), out(1)},
       {0, 1}},
      {"BatchNormalizationGrad",
       "BatchNormalization",
       {kDy, in(0), in(1), out(3), out(4)},
       {0, 1, 2},
       3},
      {"SoftmaxCrossEntropyLossGrad", "SoftmaxCrossEntropyLoss", {kDy, out(1), in(1), in(2)}, {0}}};
  return rules;
}

}  // namespace

const std::vector<OrtGradientRule>& ort_gradient_rules() {
  static const std::vector<OrtGradientRule> rules = make_rules();
  return rules;
}

}  // namespace ofsdp::importer
