// Kernel: an operator settled for one problem (dtypes, shapes, layouts, attributes), made while
// planning and run in every step. Making one may be slow and may allocate; running one never
// allocates and never chooses.
//
//   Problem         the operands and attributes; absent optional operands are not present()
//   Implementation  accepts(problem) is asked once, best first; create makes the kernel
//   KernelArgs      views in the order of the problem; `workspace` has workspace_bytes(), aligned
//   StepContext     the values that change from micro-batch to micro-batch
//
// The executor owns kernels; args are views into the arena. `run` is called on the thread that runs
// the schedule; a kernel may fan out through kernels/cpu/parallel.h. `run` returns an error only if
// the data are at fault (an index out of range).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/core/attributes.h"
#include "kernels/core/tensor.h"

namespace ofsdp::kernels {

struct Problem {
  Attributes attributes;
  std::vector<TensorDesc> inputs;
  std::vector<TensorDesc> outputs;
  std::vector<ConstantPtr> constants;  // per input: the value if known while planning, else null
  uint64_t node_seed = 0;              // of random operators: differs from node to node
  int threads = 1;

  const TensorDesc& in(size_t i) const { return inputs[i]; }
  const TensorDesc& out(size_t i) const { return outputs[i]; }
  bool has_in(size_t i) const { return i < inputs.size() && inputs[i].present(); }
  bool has_out(size_t i) const { return i < outputs.size() && outputs[i].present(); }
  const Constant* constant(size_t i) const {
    return i < constants.size() ? constants[i].get() : nullptr;
  }
  bool all_plain() const;             // every operand in the plain layout
  bool all_dense() const;             // none with rows apart
  bool all_dtype(DType dtype) const;  // every present operand of that dtype
};

struct StepContext {
  uint64_t seed = 0;
  int64_t step = 0;                       // updates, from 0
  std::span<const int64_t> sample_index;  // global index of each sample of the micro-batch
};

struct KernelArgs {
  std::span<const TensorView> inputs;
  std::span<const TensorView> outputs;
  std::byte* workspace = nullptr;
  const StepContext* step = nullptr;

  template <typename T>
  const T* in(size_t i) const {
    return inputs[i].as<const T>();
  }
  template <typename T>
  T* out(size_t i) const {
    return outputs[i].as<T>();
  }
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual size_t workspace_bytes() const { return 0; }
  virtual Status run(const KernelArgs& args) = 0;
};

// Whether an implementation takes a problem; if not, why: `fsdp-run plan --explain` prints it.
class Acceptance {
 public:
  Acceptance(bool taken) : reason_(taken ? nullptr : "") {}  // NOLINT: implicit, for lists of terms
  static Acceptance refuse(const char* reason) { return Acceptance(reason); }

  explicit operator bool() const { return reason_ == nullptr; }
  const char* reason() const { return reason_ == nullptr ? "" : reason_; }

 private:
  explicit Acceptance(const char* reason) : reason_(reason) {}
  const char* reason_;  // a literal; null: taken
};
inline Acceptance accept_if(bool taken, const char* otherwise) {
  return taken ? Acceptance(true) : Acceptance::refuse(otherwise);
}

struct Implementation {
  std::string name;  // "onednn", "loops"
  std::function<Acceptance(const Problem&)> accepts;
  std::function<std::unique_ptr<Kernel>(const Problem&)> create;
};

// Returns a kernel that calls `function`, which returns a Status or nothing, with the KernelArgs.
template <typename F>
std::unique_ptr<Kernel> make_kernel(F function, size_t workspace_bytes = 0) {
  class FunctionKernel final : public Kernel {
   public:
    FunctionKernel(F function, size_t bytes) : function_(std::move(function)), bytes_(bytes) {}
    size_t workspace_bytes() const override { return bytes_; }
    Status run(const KernelArgs& args) override {
      if constexpr (std::is_void_v<decltype(function_(args))>) {
        function_(args);
        return ok_status();
      } else {
        return function_(args);
      }
    }

   private:
    F function_;
    size_t bytes_;
  };
  return std::make_unique<FunctionKernel>(std::move(function), workspace_bytes);
}

}  // namespace ofsdp::kernels
