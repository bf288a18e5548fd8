// ofsdp.ArgmaxMatches(prediction [k, C], labels [k]), attribute ignore_index: int64[2], how many
// kept rows have their first largest element at the label, and how many rows are kept. A row with a
// NaN matches nothing. The numbers of an accuracy; no gradient.
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace argmax_matches {
namespace {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& prediction = c.inputs[0];
  const TensorDesc& labels = c.inputs[1];
  if (prediction.shape.rank() != 2 || labels.dtype != DType::kInt64 ||
      labels.shape != Shape{prediction.shape[0]}) {
    return input_error("expected a prediction [k, C] and int64 labels [k], found {} and {}",
                       prediction.text(), labels.text());
  }
  return std::vector{TensorDesc{DType::kInt64, {2}}};
}

// Index of the first largest element; -1 when there is a NaN or no element.
int64_t first_largest(const auto* row, int64_t classes) {
  int64_t best = classes > 0 ? 0 : -1;
  for (int64_t c = 0; c < classes; ++c) {
    if (row[c] != row[c]) return -1;
    if (row[c] > row[best]) best = c;
  }
  return best;
}

template <typename T, typename Label>
std::pair<int64_t, int64_t> count(const T* prediction, const Label* labels, const Shape& shape,
                                  const Attributes& attributes) {
  const bool ignores = attributes.has("ignore_index");
  const int64_t ignore = attributes.i("ignore_index", 0);
  int64_t matches = 0;
  int64_t kept = 0;
  for (int64_t row = 0; row < shape[0]; ++row) {
    const auto label = static_cast<int64_t>(labels[row]);
    if (ignores && label == ignore) continue;
    ++kept;
    if (first_largest(prediction + row * shape[1], shape[1]) == label) ++matches;
  }
  return {matches, kept};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto [matches, kept] = count(c.inputs[0].values.data(), c.inputs[1].values.data(),
                                     c.inputs[0].desc.shape, c.attributes);
  return {{c.output_descs[0], {static_cast<double>(matches), static_cast<double>(kept)}}};
}

Acceptance accepts(const Problem& p) {
  if (p.in(0).dtype != DType::kFloat32)
    return Acceptance::refuse("a prediction that is not float32");
  return accept_if(p.all_plain(), "not the plain layout");
}

std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel([shape = p.in(0).shape, attributes = p.attributes](const KernelArgs& a) {
    const auto [matches, kept] = count(a.in<float>(0), a.in<int64_t>(1), shape, attributes);
    a.out<int64_t>(0)[0] = matches;
    a.out<int64_t>(0)[1] = kept;
  });
}

}  // namespace
}  // namespace argmax_matches

void add_argmax_matches(Registry& registry) {
  using namespace argmax_matches;
  registry.add_own(make_op("ArgmaxMatches", {infer, nullptr, reference},
                           {{"loops", accepts, create}}, {.min_inputs = 2}));
}

}  // namespace ofsdp::kernels::ops
