// Kernel: an operator compiled for one problem (dtypes, shapes, layouts, attributes), made while
// planning and run in every step. Making a kernel may be slow and may allocate; running it never
// allocates and never chooses between algorithms.
//
//   Problem         operands and attributes; absent optional operands are not present()
//   Implementation  one way to run an operator. Planning asks the implementations, the best first,
//                   whether each accepts the problem; the first that does makes the kernel
//   KernelArgs      views in problem order; `workspace` has workspace_bytes(), aligned as a tensor
//   StepContext     values that change with each micro-batch
//
// A KernelCache (runtime) owns the kernels; operands are views into the rank's memory. One thread,
// the one that runs the schedule, calls `run`; a kernel may use more threads through
// kernels/cpu/parallel.h. `run` returns an error only if the data are wrong (an index out of
// range).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "kernels/core/tensor.h"

namespace ofsdp::kernels {

// A node's attributes, as in ONNX: integers, floats, strings, lists of these, and tensors; no
// subgraphs, which the importer resolves.
//
// Copies share one map until set() is called on a copy, so a copy costs nothing, and nobody needs a
// reference into a node that may move.

using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>,
                               std::vector<float>, std::vector<std::string>, ConstantPtr>;

class Attributes {
 public:
  using Map = std::map<std::string, Attribute>;

  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const std::string, Attribute>> list)
      : map_(list.size() == 0 ? nullptr : std::make_shared<Map>(list)) {}

  bool has(const std::string& name) const { return all().contains(name); }
  void set(const std::string& name, Attribute value);
  const Map& all() const& { return map_ == nullptr ? none() : *map_; }
  Map all() && { return all(); }  // so `for (... : b.attributes().all())` is safe

  // Returns the value, or `otherwise` if the attribute is absent or has another type. ONNX's
  // checker has refused wrong types before.
  template <typename T>
  T get(const std::string& name, T otherwise) const {
    if (map_ == nullptr) return otherwise;
    const auto it = map_->find(name);
    if (it == map_->end()) return otherwise;
    const T* value = std::get_if<T>(&it->second);
    return value != nullptr ? *value : otherwise;
  }
  int64_t i(const std::string& name, int64_t otherwise) const { return get(name, otherwise); }
  float f(const std::string& name, float otherwise) const { return get(name, otherwise); }
  std::string s(const std::string& name, const char* otherwise) const {
    return get(name, std::string(otherwise));
  }
  std::vector<int64_t> ints(const std::string& name, std::vector<int64_t> otherwise = {}) const {
    return get(name, std::move(otherwise));
  }

  std::string text() const;  // "axis=1 epsilon=1e-05", in name order

 private:
  static const Map& none();

  std::shared_ptr<Map>
      map_;  // copies share it; changes only if there is no other copy; null: empty
};

struct Problem {
  Attributes attributes;
  std::vector<TensorDesc> inputs;
  std::vector<TensorDesc> outputs;
  std::vector<ConstantPtr> constants;  // per input: the value if planning knows it, else null
  uint64_t node_seed = 0;              // for random operators: differs from node to node
  int threads = 1;

  const TensorDesc& in(size_t i) const { return inputs[i]; }
  const TensorDesc& out(size_t i) const { return outputs[i]; }
  bool has_in(size_t i) const { return i < inputs.size() && inputs[i].present(); }
  bool has_out(size_t i) const { return i < outputs.size() && outputs[i].present(); }
  const Constant* constant(size_t i) const {
    return i < constants.size() ? constants[i].get() : nullptr;
  }
  bool all_plain() const;             // every operand in the plain layout
  bool all_dense() const;             // no operand has pitched rows
  bool all_dtype(DType dtype) const;  // every present operand has `dtype`
};

struct StepContext {
  uint64_t seed = 0;
  int64_t step = 0;                       // the update's number, from 0
  std::span<const int64_t> sample_index;  // each sample's global index
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

// Whether an implementation accepts a problem; if not, the reason (`fsdp-run plan --explain` prints
// it).
class Acceptance {
 public:
  Acceptance(bool taken)
      : reason_(taken ? nullptr : "") {}  // NOLINT: implicit, so bools may be terms
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

// Returns a kernel that calls function(KernelArgs), which returns a Status or nothing.
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

// The implementation that made a kernel, and why earlier ones refused. create_kernel (op_def.h) and
// Device::make_kernel fill it, `plan --explain` prints it.
struct KernelChoice {
  struct Refused {
    std::string name, reason;
  };
  std::string taken;  // empty: none
  std::vector<Refused> refused;
};

}  // namespace ofsdp::kernels
