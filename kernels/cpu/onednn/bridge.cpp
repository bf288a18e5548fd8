#include "kernels/cpu/onednn/bridge.h"

#include <algorithm>
#include <limits>

#include "kernels/core/memory.h"

namespace ofsdp::kernels::onednn {
namespace {

// The run-time source for a memory object's bytes.
enum class Source { kInput, kOutput, kWorkspace };
struct Slot {
  dnnl::memory memory;
  Source source;
  size_t place;  // operand index, or workspace offset
};

struct Step {
  dnnl::primitive primitive;
  std::vector<dnnl_exec_arg_t> arguments;
};

class PrimitiveKernel final : public Kernel {
 public:
  PrimitiveKernel(const dnnl::primitive_desc_base& pd, const std::vector<Binding>& bindings)
      : stream_(engine()) {
    const std::vector<Step> after = bind(pd, bindings);
    steps_.insert(steps_.end(), after.begin(), after.end());
    workspace_bytes_ = scratchpad_at_ + scratchpad_bytes_;
    for (Slot& slot : slots_) {
      if (slot.place == kScratchpad) slot.place = scratchpad_at_;
    }
  }

  size_t workspace_bytes() const override { return workspace_bytes_; }

  Status run(const KernelArgs& args) override {
    for (const Slot& slot : slots_) {
      dnnl_memory_set_data_handle(slot.memory.get(), bytes_of(slot, args));
    }
    for (const Step& step : steps_) {
      const dnnl_status_t status =
          dnnl_primitive_execute(step.primitive.get(), stream_.get(),
                                 static_cast<int>(step.arguments.size()), step.arguments.data());
      if (status != dnnl_success)
        return fault("oneDNN could not run a primitive: status {}", int{status});
    }
    return ok_status();
  }

 private:
  static constexpr size_t kScratchpad = ~size_t{0};  // until the size is known

  static std::byte* bytes_of(const Slot& slot, const KernelArgs& args) {
    if (slot.source == Source::kWorkspace) return args.workspace + slot.place;
    return slot.source == Source::kInput ? args.inputs[slot.place].data
                                         : args.outputs[slot.place].data;
  }

  dnnl_memory_t add_slot(const Desc& desc, Source source, size_t place) {
    slots_.push_back({dnnl::memory(desc, engine(), DNNL_MEMORY_NONE), source, place});
    return slots_.back().memory.get();
  }

  // Appends reorders of inputs to steps_ and returns the reorders of outputs, which run last.
  std::vector<Step> bind(const dnnl::primitive_desc_base& pd,
                         const std::vector<Binding>& bindings) {
    Step main{dnnl::primitive(pd.get()), {}};
    std::vector<Step> after;
    for (const Binding& binding : bindings) {
      const Source source = binding.is_output ? Source::kOutput : Source::kInput;
      const Desc wanted = pd.query_md(dnnl::query::exec_arg_md, binding.argument);
      dnnl_memory_t outside = add_slot(binding.desc, source, binding.index);
      dnnl_memory_t inside = outside;
      if (wanted != binding.desc) {
        inside = add_slot(wanted, Source::kWorkspace, scratchpad_at_);
        scratchpad_at_ += align_up(wanted.get_size(), kTensorAlignment);
        if (binding.is_output) {
          after.push_back(reorder(wanted, inside, binding.desc, outside));
        } else {
          steps_.push_back(reorder(binding.desc, outside, wanted, inside));
        }
      }
      main.arguments.push_back({binding.argument, inside});
    }
    add_scratchpad(pd.query_md(dnnl::query::scratchpad_md), main);
    steps_.push_back(std::move(main));
    return after;
  }

  Step reorder(const Desc& from, dnnl_memory_t source, const Desc& to, dnnl_memory_t target) {
    const dnnl::reorder::primitive_desc pd(engine(), from, engine(), to, attributes());
    Step step{dnnl::primitive(pd.get()), {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}}};
    add_scratchpad(pd.scratchpad_desc(), step);
    return step;
  }

  // All steps share one scratchpad, after the reordered operands.
  void add_scratchpad(const Desc& desc, Step& step) {
    if (desc.get_size() == 0) return;
    scratchpad_bytes_ = std::max(scratchpad_bytes_, align_up(desc.get_size(), kTensorAlignment));
    step.arguments.push_back(
        {DNNL_ARG_SCRATCHPAD, add_slot(desc, Source::kWorkspace, kScratchpad)});
  }

  dnnl::stream stream_;
  std::vector<Slot> slots_;
  std::vector<Step> steps_;
  size_t scratchpad_at_ = 0;
  size_t scratchpad_bytes_ = 0;
  size_t workspace_bytes_ = 0;
};

}  // namespace

// The kernels' one function-local static: oneDNN's primitive cache keeps pointers to the engine
// that made a primitive, so the engine must outlive every cached primitive. It holds no state of
// ours. The cache only serves planning (equal layers compile once).
const dnnl::engine& engine() {
  static const dnnl::engine cpu = [] {
    dnnl::set_primitive_cache_capacity(512);
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return cpu;
}

bool is_present() { return true; }

std::string version() {
  const dnnl::version_t* const v = dnnl::version();
  return format_text("{}.{}.{}", v->major, v->minor, v->patch);
}

bool has_isa(dnnl::cpu_isa wanted) {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (isa & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
}

bool has_avx512() { return has_isa(dnnl::cpu_isa::avx512_core); }

// [Note: bfloat16 without tiles] Intel's VDPBF16PS starts every second cycle, on one port: half
// float32's rate. Without AMX tiles (a virtual machine may hide them), products of widened blocks
// are faster: oneDNN's bfloat16 reaches 75 GFLOP/s against 130 to 150 in float32 on an Emerald
// Rapids. AMD's instruction is fast.
bool multiplies_bf16_slowly() {
  return __builtin_cpu_is("intel") && !has_isa(dnnl::cpu_isa::avx512_core_amx);
}

// Without tiles oneDNN's float16 kernels are slower than float32 (convolutions 15.7 ms against 5.9
// ms widened), and some products have only plain loops.
bool has_type(DType dtype) {
  if (data_type(dtype) == dnnl::memory::data_type::undef) return false;
  if (dtype == DType::kFloat16) return has_isa(dnnl::cpu_isa::avx512_core_amx_fp16);
  return dtype != DType::kBFloat16 || !multiplies_bf16_slowly();
}

dnnl::memory::data_type data_type(DType dtype) {
  using Type = dnnl::memory::data_type;
  switch (dtype) {
    case DType::kFloat32:
      return Type::f32;
    case DType::kBFloat16:
      return Type::bf16;
    case DType::kFloat16:
      return Type::f16;
    default:
      return Type::undef;
  }
}

namespace {

// oneDNN counts in int in some places, and divides by a larger number's truncated rest. Without a
// description it has no primitive.
bool countable(const Dims& dims) {
  return std::ranges::all_of(dims, [](int64_t n) { return n <= std::numeric_limits<int>::max(); });
}

}  // namespace

Desc strided(DType dtype, const Dims& dims, const Dims& strides) {
  if (!countable(dims)) return {};
  return Desc(dims, data_type(dtype), strides, /*allow_empty=*/true);
}

Desc row_major(DType dtype, const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * dims[i];
  return strided(dtype, dims, strides);
}

Desc channels_last(DType dtype, const Dims& dims) {
  Dims strides(dims.size(), 1);
  int64_t stride = dims[1];
  for (size_t i = dims.size() - 1; i > 1; --i) {
    strides[i] = stride;
    stride *= dims[i];
  }
  strides[0] = stride;
  return strided(dtype, dims, strides);
}

Desc any(DType dtype, const Dims& dims) {
  if (!countable(dims)) return {};
  return Desc(dims, data_type(dtype), dnnl::memory::format_tag::any, /*allow_empty=*/true);
}

Desc desc_of(const TensorDesc& desc) {
  return desc.layout == Layout::kChannelsLast ? channels_last(desc.dtype, desc.shape.axes())
                                              : row_major(desc.dtype, desc.shape.axes());
}

dnnl::primitive_attr attributes() {
  dnnl::primitive_attr made;
  made.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  made.set_fpmath_mode(dnnl::fpmath_mode::strict);  // whatever the environment says
  return made;
}

bool is_noisy(std::string_view implementation) {
  return implementation.starts_with("x64:gemm") || implementation.starts_with("gemm") ||
         implementation.starts_with("brg_fwd");
}

bool is_reference(std::string_view implementation) { return implementation.starts_with("ref"); }

std::unique_ptr<Kernel> make_kernel(const dnnl::primitive_desc_base& pd,
                                    const std::vector<Binding>& bindings) {
  return std::make_unique<PrimitiveKernel>(pd, bindings);
}

}  // namespace ofsdp::kernels::onednn
