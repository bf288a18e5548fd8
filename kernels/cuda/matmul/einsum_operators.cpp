// Einsum. If the equation is one batched product of two matrices (kernels/ops/matmul/einsum.h), a
// matrix product; operands with another axis order are transposed into the workspace first.
// Otherwise loops (product_kernels.h), which also compute ofsdp.EinsumGrad. If a create function
// returns null, the problem goes to the next implementation in the list.
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/matmul/product.h"
#include "kernels/cuda/matmul/product_kernels.h"
#include "kernels/cuda/shape/movement.h"
#include "kernels/ops/matmul/einsum.h"

namespace ofsdp::kernels::cuda {
namespace {

using ops::EinsumForm;
using ops::EinsumTerms;
using ops::Labels;

// Transposes an operand from one label order to another; not needed if they are equal.
struct Relayout {
  bool needed = false;
  std::vector<int64_t> shape, strides;  // target shape; source strides
  size_t size = 0, place = 0;

  Relayout(const EinsumTerms& terms, const Labels& from, const Labels& to, DType dtype,
           Places& places)
      : needed(from != to), shape(ops::label_shape(terms, to).axes()), size(dtype_size(dtype)) {
    const auto all = ops::label_strides(from, ops::label_shape(terms, from), terms.labels());
    for (const int label : to) strides.push_back(all[static_cast<size_t>(label)]);
    if (needed) place = places.take(ops::label_shape(terms, to).numel(), size);
  }
  cudaError_t run(const void* from, void* to, cudaStream_t stream) const {
    return strided_copy(size, shape, strides, dense_strides(shape), from, to, stream);
  }
};

class Product final : public CudaKernel {
 public:
  Product(DeviceState& device, const EinsumTerms& terms, const EinsumForm& form, const Problem& p)
      : a_(terms, terms.inputs[0], form.a, p.in(0).dtype, places_),
        b_(terms, terms.inputs[1], form.b, p.in(0).dtype, places_),
        y_(terms, form.y, terms.output, p.in(0).dtype, places_),
        bytes_(p.out(0).bytes()) {
    const auto count = [&](const Labels& labels) {
      return ops::label_shape(terms, labels).numel();
    };
    ProductShape s;
    s.dtype = p.in(0).dtype;
    s.rows = count(form.rows);
    s.inner = count(form.inner);
    s.columns = count(form.columns);
    s.transpose_a = form.transpose_a;
    s.transpose_b = form.transpose_b;
    s.batch = count(form.batch);
    s.stride_a = s.rows * s.inner;
    s.stride_b = s.inner * s.columns;
    s.stride_d = s.rows * s.columns;
    any_ = s.inner > 0;
    if (any_) product_ = make_product(device, s);
    if (product_ != nullptr) scratch_ = places_.take(product_->workspace_bytes());
  }
  bool made() const { return !any_ || product_ != nullptr; }
  size_t workspace_bytes() const override { return places_.bytes(); }

  cudaError_t run(cudaStream_t stream, const Launch& l) override {
    if (!any_) return cudaMemsetAsync(l.out(0), 0, bytes_, stream);
    const auto transpose = [&](const Relayout& r, const void* from, const void*& to) {
      to = r.needed ? at(l.workspace, r.place) : from;
      return r.needed ? r.run(from, at(l.workspace, r.place), stream) : cudaSuccess;
    };
    const void *a = nullptr, *b = nullptr;
    OFSDP_CUDA_TRY(transpose(a_, l.in(0), a));
    OFSDP_CUDA_TRY(transpose(b_, l.in(1), b));
    void* const y = y_.needed ? at(l.workspace, y_.place) : l.out(0);
    OFSDP_CUDA_TRY(product_->run(stream, a, b, nullptr, y, at(l.workspace, scratch_)));
    return y_.needed ? y_.run(y, l.out(0), stream) : cudaSuccess;
  }

 private:
  Places places_;
  Relayout a_, b_, y_;
  size_t bytes_, scratch_ = 0;
  bool any_ = false;
  std::unique_ptr<MatrixProduct> product_;
};

EinsumTerms terms_of(const Problem& p, size_t first) {
  return ops::einsum_terms(p.attributes, ops::operand_shapes(p.inputs, first));
}

EinsumForm form_of(const Problem& p, const EinsumTerms& terms) {
  return ops::einsum_form(terms, ops::operand_shapes(p.inputs));
}

Acceptance accepts_floats(const Problem& p) {
  return accept({plain(p), floats(p.in(0).dtype), alike(p.all_dtype(p.in(0).dtype))});
}

Acceptance accepts_product(const Problem& p) {
  return accept(accepts_floats(p), {{form_of(p, terms_of(p, 0)).possible,
                                     "the equation is no batched product of two matrices"}});
}

std::unique_ptr<CudaKernel> create_product(DeviceState& device, const Problem& p) {
  const EinsumTerms terms = terms_of(p, 0);
  auto made = std::make_unique<Product>(device, terms, form_of(p, terms), p);
  return made->made() ? std::move(made) : nullptr;
}

// Returns the walk over the labels in `list`, with strides for each operand. The walk has rank < 0
// if its merged axes are more than StridedIndex can hold.
StridedIndex walk_of(const EinsumTerms& terms, const std::vector<int>& list,
                     const std::vector<std::vector<int64_t>>& strides) {
  std::vector<int64_t> sizes;
  std::vector<std::vector<int64_t>> steps(strides.size());
  for (const int label : list) {
    sizes.push_back(terms.sizes[static_cast<size_t>(label)]);
    for (size_t k = 0; k < strides.size(); ++k) {
      steps[k].push_back(strides[k][static_cast<size_t>(label)]);
    }
  }
  return merge_dense_axes(sizes, steps);
}

// strides[k]: each label's stride in the result (k = 0) and in each operand. Sums over labels that
// are not in `kept`.
std::unique_ptr<CudaKernel> make_loops(const Problem& p, const EinsumTerms& terms,
                                       const std::vector<std::vector<int64_t>>& strides,
                                       const std::vector<bool>& kept,
                                       const std::vector<size_t>& inputs) {
  if (strides.size() > size_t{kMaxOperands}) return nullptr;
  std::vector<int> outer, summed;
  for (int label = 0; label < terms.labels(); ++label) {
    (kept[static_cast<size_t>(label)] ? outer : summed).push_back(label);
  }
  EinsumParams e;
  e.dtype = p.in(0).dtype;
  e.count = static_cast<int>(inputs.size());
  e.outer = walk_of(terms, outer, strides);
  e.summed = walk_of(terms, summed, strides);
  if (e.outer.rank < 0 || e.summed.rank < 0) return nullptr;
  return make_cuda_kernel([=, bytes = p.out(0).bytes()](cudaStream_t stream, const Launch& l) {
    // A gradient of an input with a repeated label ("ii") is written only on the diagonal.
    OFSDP_CUDA_TRY(cudaMemsetAsync(l.out(0), 0, bytes, stream));
    EinsumParams call = e;
    for (size_t k = 0; k < inputs.size(); ++k) call.operands[k] = l.in(inputs[k]);
    return einsum_loops(call, l.out(0), stream);
  });
}

std::unique_ptr<CudaKernel> create_loops(DeviceState&, const Problem& p) {
  const EinsumTerms terms = terms_of(p, 0);
  std::vector<std::vector<int64_t>> strides{
      ops::label_strides(terms.output, p.out(0).shape, terms.labels())};
  std::vector<bool> kept(static_cast<size_t>(terms.labels()), false);
  for (const int label : terms.output) kept[static_cast<size_t>(label)] = true;
  std::vector<size_t> inputs;
  for (size_t k = 0; k < p.inputs.size(); ++k) {
    strides.push_back(ops::label_strides(terms.inputs[k], p.in(k).shape, terms.labels()));
    inputs.push_back(k);
  }
  return make_loops(p, terms, strides, kept, inputs);
}

// Inputs dy, x0, x1, ...; returns d x_k, with k in the attribute "input". Sums over every label
// that x_k lacks, and over every label whose axis in x_k is broadcast from size 1.
std::unique_ptr<CudaKernel> create_grad(DeviceState&, const Problem& p) {
  const EinsumTerms terms = terms_of(p, 1);
  const auto wanted = static_cast<size_t>(p.attributes.i("input", 0));
  const Labels& mine = terms.inputs[wanted];
  const Shape& x = p.out(0).shape;
  std::vector<bool> kept(static_cast<size_t>(terms.labels()), false);
  for (size_t axis = 0; axis < mine.size(); ++axis) {
    const auto label = static_cast<size_t>(mine[axis]);
    if (x.axes()[axis] == terms.sizes[label]) kept[label] = true;
  }
  std::vector<std::vector<int64_t>> strides{
      ops::label_strides(mine, x, terms.labels()),
      ops::label_strides(terms.output, p.in(0).shape, terms.labels())};
  std::vector<size_t> inputs{0};
  for (size_t k = 0; k + 1 < p.inputs.size(); ++k) {
    if (k == wanted) continue;
    strides.push_back(ops::label_strides(terms.inputs[k], p.in(k + 1).shape, terms.labels()));
    inputs.push_back(k + 1);
  }
  return make_loops(p, terms, strides, kept, inputs);
}

}  // namespace

void add_einsum(CudaImplementations& list) {
  list.insert(list.end(), {{"Einsum", "product", accepts_product, create_product},
                           {"Einsum", "loops", accepts_floats, create_loops},
                           {"ofsdp.EinsumGrad", "loops", accepts_floats, create_grad}});
}

}  // namespace ofsdp::kernels::cuda
