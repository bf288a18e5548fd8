// Mod, attribute fmod (0): y = a - q b with q = floor(a / b), so y has the sign of b; with fmod = 1
// q = trunc(a / b), so y has the sign of a. Broadcast, of all numbers; an integer divisor of 0 is an
// error of the data. da = dy, db = -dy q, each summed over what was broadcast; q is (a - y) / b,
// rounded.
// https://onnx.ai/onnx/operators/onnx__Mod.html
#include <cmath>

#include "kernels/cpu/integer_division.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/pointwise/pointwise.h"

namespace ofsdp::kernels::ops {
namespace {

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0);
  if (b.needs_grad(0)) b.set_grad(0, b.sum_to(dy, b.input(0)));
  if (!b.needs_grad(1)) return;
  const Ref whole = b.emit1("Sub", {b.input(0), b.output(0)});
  const Ref quotient = b.emit1("Round", {b.emit1("Div", {whole, b.input(1)})});
  const Ref product = b.emit1("Mul", {dy, quotient});
  b.set_grad(1, b.emit1("Neg", {b.sum_to(product, b.input(1))}));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const bool truncated = c.attributes.i("fmod", 0) != 0;
  return binary_reference(c, [truncated](double a, double b) {
    const double rest = std::fmod(a, b);
    return truncated || rest == 0 || (rest < 0) == (b < 0) ? rest : rest + b;
  });
}

struct Mod {
  bool truncated;
  explicit Mod(const Attributes& a) : truncated(a.i("fmod", 0) != 0) {}
  template <typename T>
  OFSDP_INLINE T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      const T rest = std::fmod(a, b);
      if (truncated) return rest;
      if (rest == T{0}) return std::copysign(rest, b);
      return (rest < T{0}) == (b < T{0}) ? rest : rest + b;
    } else {
      const T rest = wrapping_rest(a, b);
      const bool same = truncated || rest == T{0} || (rest < T{0}) == (b < T{0});
      return same ? rest : static_cast<T>(rest + b);
    }
  }
};

std::unique_ptr<Kernel> create(const Problem& p) {
  return with_divisor_check(p, create_binary_of<Mod, kNumberTypes>(p));
}

// Away from the jumps at a = n b, where there is no gradient.
void fill(size_t input, std::vector<double>& values) {
  for (double& v : values) v = input == 1 ? (v < 0 ? -4 : 4) : v;
}

std::vector<SampleCase> samples() {
  std::vector<SampleCase> list = samples_of_types(kNumberTypes, fill);
  std::vector<SampleCase> truncated = list;
  for (SampleCase& s : truncated) {
    s.name += "_truncated";
    s.attributes.set("fmod", int64_t{1});
  }
  append(list, std::move(truncated));
  return list;
}

}  // namespace

void add_mod(Registry& registry) {
  registry.add(pointwise({.name = "Mod",
                          .min_inputs = 2,
                          .first_opset = 13,
                          .grad = grad,
                          .reference = reference,
                          .cpu = kernels_by<accepts_binary_of<kNumberTypes>, create>(),
                          .samples = samples}));
}

}  // namespace ofsdp::kernels::ops
