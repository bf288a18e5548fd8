#include "kernels/ops/fused_activation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace ofsdp::kernels::ops {
namespace {

using Numbers = std::array<double, 2>;

struct Form {
  const char* name;
  const char* attributes[2];  // names in the activation's operator
  Numbers defaults;
  double (*of)(double x, const Numbers& n);
};

constexpr double kMax = std::numeric_limits<float>::max();

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double hard_sigmoid(double x, double slope, double offset) {
  return std::clamp(slope * x + offset, 0.0, 1.0);
}

const Form kForms[] = {
    {"Relu", {}, {}, [](double x, const Numbers&) { return std::max(x, 0.0); }},
    {"Tanh", {}, {}, [](double x, const Numbers&) { return std::tanh(x); }},
    {"Sigmoid", {}, {}, [](double x, const Numbers&) { return sigmoid(x); }},
    {"LeakyRelu",
     {"alpha"},
     {0.01},
     [](double x, const Numbers& n) { return x < 0 ? n[0] * x : x; }},
    {"Clip",
     {},
     {-kMax, kMax},
     [](double x, const Numbers& n) { return std::min(std::max(x, n[0]), n[1]); }},
    {"HardSigmoid",
     {"alpha", "beta"},
     {0.2, 0.5},
     [](double x, const Numbers& n) { return hard_sigmoid(x, n[0], n[1]); }},
    {"HardSwish",
     {},
     {},
     [](double x, const Numbers&) { return x * hard_sigmoid(x, 1. / 6, 0.5); }},
    {"Elu",
     {"alpha"},
     {1},
     [](double x, const Numbers& n) { return x < 0 ? n[0] * std::expm1(x) : x; }},
    {"Selu",
     {"alpha", "gamma"},
     {1.67326319217681884765625, 1.05070102214813232421875},
     [](double x, const Numbers& n) { return n[1] * (x < 0 ? n[0] * std::expm1(x) : x); }},
    {"Softplus", {}, {}, [](double x, const Numbers&) { return std::log1p(std::exp(x)); }},
    {"Softsign", {}, {}, [](double x, const Numbers&) { return x / (1 + std::abs(x)); }},
    {"ThresholdedRelu",
     {"alpha"},
     {1},
     [](double x, const Numbers& n) { return x > n[0] ? x : 0; }},
    {"Gelu",
     {},
     {},
     [](double x, const Numbers&) { return x / 2 * (1 + std::erf(x * M_SQRT1_2)); }},
};

const Form* form_of(const std::string& name) {
  const auto found = std::ranges::find_if(kForms, [&](const Form& f) { return name == f.name; });
  return found == std::end(kForms) ? nullptr : found;
}

Numbers numbers_of(const Form& form, const FusedActivation& activation) {
  Numbers made = form.defaults;
  for (size_t i = 0; i < std::min(made.size(), activation.numbers.size()); ++i) {
    made[i] = static_cast<double>(activation.numbers[i]);
  }
  return made;
}

}  // namespace

Status check_activation(const FusedActivation& activation) {
  if (activation.name.empty() || form_of(activation.name) != nullptr) return ok_status();
  std::string known;
  for (const Form& form : kForms) known += (known.empty() ? "" : ", ") + std::string(form.name);
  return input_error("attribute 'activation': expected one of {}, found '{}'", known,
                     activation.name);
}

Ref activated(BodyBuilder& b, Ref x, const FusedActivation& activation) {
  const Form* form = form_of(activation.name);
  if (form == nullptr) return x;
  const Numbers numbers = numbers_of(*form, activation);
  if (activation.name == "Clip") {
    const Ref least = b.like(x, numbers[0]);
    const Ref most = b.like(x, numbers[1]);
    return b.emit1("Clip", {x, least, most});
  }
  Attributes attributes;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (form->attributes[i] == nullptr) continue;
    attributes.set(form->attributes[i], static_cast<float>(numbers[i]));
  }
  return b.emit1(activation.name, {x}, attributes);
}

double reference_activated(const FusedActivation& activation, double x) {
  const Form* form = form_of(activation.name);
  return form == nullptr ? x : form->of(x, numbers_of(*form, activation));
}

}  // namespace ofsdp::kernels::ops
