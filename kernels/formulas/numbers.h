// Numbers that a node's attributes give to pointwise formulas, with ONNX's defaults, for the CPU
// and for devices.
//
//   numbers_of("Elu", attributes)    {alpha, 0}; the same for "EluGrad" and "ofsdp.EluGrad"
//
// Operators without a row have {0, 0}.
#pragma once

#include <string_view>

#include "kernels/core/kernel.h"

namespace ofsdp::kernels {

struct Numbers {
  float a = 0, b = 0;
};

struct NumberRow {
  std::string_view op;
  const char* first;
  float first_default;
  const char* second = nullptr;
  float second_default = 0;
};

inline constexpr NumberRow kNumberRows[] = {
    {"BitShift", "direction", 0},  // 1: LEFT
    {"Celu", "alpha", 1},
    {"Elu", "alpha", 1},
    {"HardSigmoid", "alpha", 0.2f, "beta", 0.5f},
    {"IsInf", "detect_positive", 1, "detect_negative", 1},
    {"LeakyRelu", "alpha", 0.01f},
    {"Mod", "fmod", 0},
    {"QuickGelu", "alpha", 1.702f},
    {"Selu", "alpha", 1.67326319217681884765625f, "gamma", 1.05070102214813232421875f},
    {"Shrink", "lambd", 0.5f, "bias", 0},
    {"Swish", "alpha", 1},
    {"ThresholdedRelu", "alpha", 1},
};

// Returns attribute `name`: a float, an integer, or 1 for the text LEFT (0 for other text);
// `otherwise` if absent.
inline float number_in(const Attributes& attributes, const char* name, float otherwise) {
  const auto found = attributes.all().find(name);
  if (found == attributes.all().end()) return otherwise;
  if (const auto* number = std::get_if<float>(&found->second)) return *number;
  if (const auto* whole = std::get_if<int64_t>(&found->second)) return static_cast<float>(*whole);
  const auto* text = std::get_if<std::string>(&found->second);
  return text != nullptr && *text == "LEFT" ? 1.0f : 0.0f;
}

inline Numbers numbers_of(std::string_view op, const Attributes& attributes) {
  op.remove_prefix(op.rfind('.') + 1);  // npos + 1 is 0
  if (op.ends_with("Grad")) op.remove_suffix(4);
  for (const NumberRow& row : kNumberRows) {
    if (row.op != op) continue;
    Numbers made{number_in(attributes, row.first, row.first_default), 0};
    if (row.second != nullptr) made.b = number_in(attributes, row.second, row.second_default);
    return made;
  }
  return {};
}

}  // namespace ofsdp::kernels
