// RotaryEmbedding(x, cos, sin, positions) rotates pairs (a, b) among each head's first
// rotary_embedding_dim elements by their position's angle: a' = a cos - b sin, b' = a sin + b cos.
// Other elements stay. Pairs are (i, i + dim / 2), or neighbours if interleaved. x is [B, heads, S,
// D], or [B, S, heads D] with num_heads. Caches are [rows, dim / 2], or [B, S, dim / 2] without
// positions.
//
// dx is the inverse rotation: the same with -sin. The caches are tables without a gradient.
// https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html
//
// com.microsoft.RotaryEmbedding(x, positions, cos, sin) has another input order; a single position
// is the first step's offset. It refuses a scale other than 1 and is_packed_batching.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace rotary_embedding {
namespace {

// Input indices.
struct RotaryInputs {
  size_t cos, sin, positions;
};

constexpr RotaryInputs kOnnx{1, 2, 3}, kMicrosoft{2, 3, 1};

struct Extent {
  int64_t batch, heads, steps, width, dim;
  bool packed, interleaved;

  // Sample and sequence position for row r in memory.
  int64_t sample(int64_t r) const { return r / (heads * steps); }
  int64_t step(int64_t r) const { return packed ? r / heads % steps : r % steps; }
};

Extent extent(const Shape& x, const Shape& cos, const Attributes& attributes) {
  Extent e{};
  e.packed = x.rank() == 3;
  e.batch = x[0];
  e.dim = attributes.i("rotary_embedding_dim", 0);
  e.heads = e.packed ? attributes.i("num_heads", 0) : x[1];
  // com.microsoft omits num_heads if the cache gives the head width.
  if (e.packed && e.heads == 0 && e.dim == 0)
    e.heads = x[2] / std::max<int64_t>(2 * cos[cos.rank() - 1], 1);
  e.steps = e.packed ? x[1] : x[2];
  e.width = e.packed ? (e.heads == 0 ? 0 : x[2] / e.heads) : x[3];
  if (e.dim == 0) e.dim = e.width;
  e.interleaved = attributes.i("interleaved", 0) != 0;
  return e;
}

// Returns the cache row for row r in x.
int64_t cache_row(const Extent& e, const auto* positions, int64_t count, int64_t r) {
  const int64_t at = e.sample(r) * e.steps + e.step(r);
  if (positions == nullptr) return at;
  if (count == 1)
    return static_cast<int64_t>(positions[0]) + e.step(r);  // com.microsoft: an offset
  return static_cast<int64_t>(positions[at]);
}

template <typename T>
struct Row {
  const T *x, *cos, *sin;
  T* y;
  int64_t half;
};

template <typename T>
[[gnu::always_inline]] inline void rotate_as(const Row<T>& r, bool interleaved) {
  const auto [x, cos, sin, y, half] = r;
  const int64_t step = interleaved ? 2 : 1, far = interleaved ? 1 : half;
#pragma GCC ivdep
  for (int64_t i = 0; i < half; ++i) {
    const T a = x[i * step], b = x[i * step + far];
    y[i * step] = a * cos[i] - b * sin[i];
    y[i * step + far] = a * sin[i] + b * cos[i];
  }
}

OFSDP_MULTIARCH void rotate(const Row<float>& r, bool interleaved) {
  if (interleaved) return rotate_as(r, true);
  rotate_as(r, false);
}
void rotate(const Row<double>& r, bool interleaved) { rotate_as(r, interleaved); }

template <RotaryInputs in>
Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const TensorDesc& cos = c.inputs[in.cos];
  if (x.shape.rank() != 3 && x.shape.rank() != 4) {
    return input_error("expected x of 3 or 4 axes, found {}", x.text());
  }
  const bool positions = c.has(in.positions);
  if (cos.shape != c.inputs[in.sin].shape || cos.shape.rank() != (positions ? 2 : 3)) {
    return input_error("expected caches of one shape and {} axes, found {} and {}",
                       positions ? 2 : 3, cos.text(), c.inputs[in.sin].text());
  }
  const Extent e = extent(x.shape, cos.shape, c.attributes);
  const int64_t columns = cos.shape[cos.shape.rank() - 1];
  const bool whole = !e.packed || (e.heads > 0 && x.shape[2] % e.heads == 0);
  if (!whole || e.dim % 2 != 0 || e.dim > e.width || columns * 2 != e.dim) {
    return input_error("heads of {} and a rotation of {} do not fit x {} and caches {}", e.width,
                       e.dim, x.text(), cos.text());
  }
  if (!positions && (cos.shape[0] != e.batch || cos.shape[1] != e.steps)) {
    return input_error("expected caches [{}, {}, {}], found {}", e.batch, e.steps, columns,
                       cos.text());
  }
  if (positions) {
    const int64_t count = c.inputs[in.positions].numel();
    if (count != e.batch * e.steps && !(count == 1 && !x.shape.numel())) {
      const bool offset = in.positions == 1 && count == 1;
      if (!offset) {
        return input_error("expected {} positions, found {}", e.batch * e.steps,
                           c.inputs[in.positions].text());
      }
    }
  }
  return std::vector{TensorDesc{x.dtype, x.shape}};
}

template <RotaryInputs in>
std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const Extent e = extent(y.desc.shape, c.inputs[in.cos].desc.shape, c.attributes);
  const bool has = in.positions < c.inputs.size() && c.inputs[in.positions].desc.present();
  const double* positions = has ? c.inputs[in.positions].values.data() : nullptr;
  const int64_t count = has ? c.inputs[in.positions].desc.numel() : 0;
  for (int64_t r = 0; e.width > 0 && r < y.desc.numel() / e.width; ++r) {
    const int64_t row = cache_row(e, positions, count, r);
    for (int64_t i = 0; i < e.dim / 2; ++i) {
      const auto at = static_cast<size_t>(row * (e.dim / 2) + i);
      const double cos = c.inputs[in.cos].values[at], sin = c.inputs[in.sin].values[at];
      double& a = y[r * e.width + (e.interleaved ? 2 * i : i)];
      double& b = y[r * e.width + (e.interleaved ? 2 * i + 1 : i + e.dim / 2)];
      const double before = a;
      a = before * cos - b * sin;
      b = before * sin + b * cos;
    }
  }
  return {y};
}

template <typename T>
Acceptance accepts(const Problem& p) {
  constexpr DType kType = dtype_of<T>();
  const auto fits = [](const TensorDesc& d) {
    return !d.present() || d.dtype == kType || d.dtype == DType::kInt64;
  };
  if (p.in(0).dtype != kType || !std::ranges::all_of(p.inputs, fits)) {
    return Acceptance::refuse(not_of_type<T>());
  }
  return accept_if(p.all_plain(), kNotPlain);
}

template <typename T, RotaryInputs in>
std::unique_ptr<Kernel> create(const Problem& p) {
  const Extent e = extent(p.in(0).shape, p.in(in.cos).shape, p.attributes);
  const bool has = p.has_in(in.positions);
  const int64_t count = has ? p.in(in.positions).numel() : 0;
  const Shape& cache = p.in(in.cos).shape;
  const int64_t rows = cache.numel(0, cache.rank() - 1);
  return make_kernel([=](const KernelArgs& a) {
    const int64_t* positions = has ? a.in<int64_t>(in.positions) : nullptr;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t last = positions[i] + (count == 1 ? e.steps - 1 : 0);
      if (positions[i] >= 0 && last < rows) continue;
      return input_error("position {} is outside the cache of {} rows", last, rows);
    }
    const int64_t half = e.dim / 2;
    parallel_each(e.batch * e.heads * e.steps, kElementGrain / (e.width + 1) + 1, [&](int64_t r) {
      const int64_t at = cache_row(e, positions, count, r) * half;
      const T* x = a.in<T>(0) + r * e.width;
      T* y = a.out<T>(0) + r * e.width;
      rotate({x, a.in<T>(in.cos) + at, a.in<T>(in.sin) + at, y, half}, e.interleaved);
      if (x != y) std::copy(x + e.dim, x + e.width, y + e.dim);
    });
    return ok_status();
  });
}

// --- RotaryEmbedding ---

void grad(GradBuilder& b) {
  const Ref positions = b.num_inputs() > 3 ? b.input(3) : Ref{};
  const Ref back = b.emit1("Neg", {b.input(2)});
  b.set_grad(0, b.emit1("RotaryEmbedding", {b.grad_output(0), b.input(1), back, positions},
                        b.attributes()));
}

// --- com.microsoft.RotaryEmbedding ---

Result<std::vector<TensorDesc>> microsoft_infer(const InferContext& c) {
  const float scale = c.attributes.f("scale", 1.0f);
  if (scale != 1.0f || c.attributes.i("is_packed_batching", 0) != 0) {
    return input_error("expected scale 1 and is_packed_batching 0, found {} and {}", scale,
                       c.attributes.i("is_packed_batching", 0));
  }
  return infer<kMicrosoft>(c);
}

void microsoft_grad(GradBuilder& b) {
  const Ref back = b.emit1("Neg", {b.input(3)});
  b.set_grad(0, b.emit1("com.microsoft.RotaryEmbedding",
                        {b.grad_output(0), b.input(1), b.input(2), back}, b.attributes()));
}

template <RotaryInputs in>
std::vector<Implementation> kernels() {
  return float_kernels<accepts<float>, create<float, in>, accepts<double>, create<double, in>>(
      "rows");
}

}  // namespace
}  // namespace rotary_embedding

void add_rotary_embedding(Registry& registry) {
  using namespace rotary_embedding;
  registry.add(make_op(
      "RotaryEmbedding", {infer<kOnnx>, grad, reference<kOnnx>}, kernels<kOnnx>(),
      {.min_inputs = 3, .first_opset = 23, .inplace_inputs = {0}, .rotary_inputs = {1, 2}}));
  registry.add(make_op("RotaryEmbedding", {microsoft_infer, microsoft_grad, reference<kMicrosoft>},
                       kernels<kMicrosoft>(),
                       {.domain = "com.microsoft",
                        .min_inputs = 4,
                        .inplace_inputs = {0},
                        .rotary_inputs = {2, 3}}));
}

}  // namespace ofsdp::kernels::ops
