// ofsdp.KeptRowsGemm(A, B, C, rows): Gemm of the kept rows of its operands
// (kernels/core/kept_rows.h), which come first in them, with n = rounded_rows of their number.
// C may be absent; attributes as Gemm's.
//
//   transA = 0   A [N, K], C of one row: the first n rows of Y are those of Gemm, the others zeros
//   transA = 1   A [N, M], B [N, K] (transB = 0, no C): sums over the first n rows alone
//
// Gemm's kernels for each of the eight numbers of rows are made while planning; a step takes one.
#include <algorithm>
#include <cstring>

#include "kernels/core/kept_rows.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace kept_rows_gemm {
namespace {

constexpr size_t kRows = 3;

bool sums_rows(const Attributes& attributes) { return attributes.i("transA", 0) != 0; }

// Operands without `rows`, of n rows.
std::vector<TensorDesc> gemm_inputs(const Attributes& attributes, std::vector<TensorDesc> inputs,
                                    int64_t n) {
  inputs.resize(inputs[2].present() ? 3 : 2);
  inputs[0].shape[0] = n;
  if (sums_rows(attributes)) inputs[1].shape[0] = n;
  return inputs;
}

Result<std::vector<TensorDesc>> infer_with(const OpDef& gemm, const InferContext& c) {
  const TensorDesc& a = c.inputs[0];
  if (a.shape.rank() != 2 || !are_kept_rows(c.inputs[kRows], a.shape[0])) {
    return input_error("expected A [N, K] and int64 [N + 1], found {} and {}", a.text(),
                       c.inputs[kRows].text());
  }
  if (sums_rows(c.attributes) ? c.attributes.i("transB", 0) != 0 || c.has(2)
                              : c.has(2) && c.inputs[2].shape.rank() > 1) {
    return input_error("a C of several rows, or a product over rows with transB or C");
  }
  return gemm.infer({c.attributes, gemm_inputs(c.attributes, c.inputs, a.shape[0]), {}, c.wanted});
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const bool over_rows = sums_rows(c.attributes);
  const int64_t all = c.inputs[0].desc.shape[0];
  const int64_t n = rounded_rows(all - static_cast<int64_t>(c.inputs[kRows][0]), all);
  ReferenceContext part = c;
  part.inputs[0].desc.shape[0] = n;
  if (over_rows) part.inputs[1].desc.shape[0] = n;
  part.inputs.pop_back();
  if (!over_rows) part.output_descs[0].shape[0] = n;
  RefTensor y = gemm_reference(part)[0];
  y.desc = c.output_descs[0];
  y.values.resize(static_cast<size_t>(y.desc.numel()), 0);
  return {y};
}

Problem of_size(const Problem& p, size_t size) {
  const int64_t n = rows_of_size(size, p.in(0).shape[0]);
  Problem made = p;
  made.inputs = gemm_inputs(p.attributes, p.inputs, n);
  made.constants.resize(std::min(p.constants.size(), made.inputs.size()));
  if (!sums_rows(p.attributes)) made.outputs[0].shape[0] = n;
  return made;
}

constexpr size_t kAllRows = kRowSixteenths.size() - 1;

// Asks an implementation of Gemm about all rows: its name, which `plan --explain` prints, says how
// those are multiplied.
Acceptance accepts_with(const OpDef& gemm, const Implementation& implementation, const Problem& p) {
  if (!p.all_plain()) return Acceptance::refuse(kNotPlain);
  if (const Acceptance all = implementation.accepts(of_size(p, kAllRows)); !all) return all;
  for (size_t size = 0; size < kAllRows; ++size) {
    const Problem part = of_size(p, size);
    const bool taken = std::ranges::any_of(
        gemm.cpu, [&](const Implementation& one) { return static_cast<bool>(one.accepts(part)); });
    if (!taken) return Acceptance::refuse("Gemm has no kernel for some of the numbers of rows");
  }
  return true;
}

void clear(std::byte* bytes, size_t count) {
  constexpr int64_t kGrain = int64_t{1} << 18;
  parallel_for(static_cast<int64_t>(count), kGrain, [bytes](int64_t begin, int64_t end) {
    std::memset(bytes + begin, 0, static_cast<size_t>(end - begin));
  });
}

class KeptRowsGemm final : public Kernel {
 public:
  KeptRowsGemm(const OpDef& gemm, const Problem& p)
      : all_(p.in(0).shape[0]), operands_(p.has_in(2) ? 3 : 2) {
    for (size_t size = 0; size < parts_.size(); ++size) {
      const Problem part = of_size(p, size);
      Result<std::unique_ptr<Kernel>> made = create_kernel(gemm, part);
      OFSDP_CHECK(made.ok(), "{}", made.error().message());
      parts_[size] = {*std::move(made), part.out(0).bytes()};
      workspace_ = std::max(workspace_, parts_[size].kernel->workspace_bytes());
    }
  }

  size_t workspace_bytes() const override { return workspace_; }

  Status run(const KernelArgs& a) override {
    const int64_t kept = kept_of(a.in<int64_t>(kRows), all_);
    size_t written = 0;
    if (kept > 0) {
      const Part& part = parts_[size_for(kept, all_)];
      KernelArgs args = a;
      args.inputs = a.inputs.first(operands_);
      OFSDP_RETURN_IF_ERROR(part.kernel->run(args));
      written = part.written;
    }
    clear(a.outputs[0].data + written, a.outputs[0].desc.bytes() - written);
    return ok_status();
  }

 private:
  struct Part {
    std::unique_ptr<Kernel> kernel;
    size_t written = 0;  // bytes of Y
  };

  int64_t all_;      // rows
  size_t operands_;  // of Gemm
  std::array<Part, kRowSixteenths.size()> parts_;
  size_t workspace_ = 0;
};

}  // namespace
}  // namespace kept_rows_gemm

void add_kept_rows_gemm(Registry& registry) {
  using namespace kept_rows_gemm;
  const auto gemm = std::make_shared<const OpDef>(registry.get("Gemm"));
  std::vector<Implementation> made = gemm->cpu;
  for (Implementation& implementation : made) {
    implementation.accepts = [gemm, one = implementation](const Problem& p) {
      return accepts_with(*gemm, one, p);
    };
    implementation.create = [gemm](const Problem& p) -> std::unique_ptr<Kernel> {
      return std::make_unique<KeptRowsGemm>(*gemm, p);
    };
  }
  const auto infer = [gemm](const InferContext& c) { return infer_with(*gemm, c); };
  registry.add_own(
      make_op("KeptRowsGemm", {infer, nullptr, reference}, std::move(made), {.min_inputs = 4}));
}

}  // namespace ofsdp::kernels::ops
