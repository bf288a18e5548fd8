// Attention, the attention gradient and rotary embeddings.
#include "kernels/cuda/attention/attention.h"
#include "tests/races/table.h"

namespace ofsdp::races {
namespace {

using kernels::cuda::AttentionGradient;
using kernels::cuda::AttentionParams;

// Two query heads for one key head; queries and keys that fill no tile.
struct Heads {
  AttentionParams extent;
  void *q, *k, *v, *y;
  float* statistics;

  Heads(Buffers& m, DType dtype, int64_t width, bool causal, int64_t queries = 70,
        int64_t keys = 70) {
    AttentionParams& e = extent;
    e.dtype = dtype;
    e.batch = e.kv_heads = 1;
    e.heads = 2;
    e.queries = queries;
    e.keys = keys;
    e.width = e.v_width = width;
    e.scale = 0.1f;
    e.causal = causal;
    e.q = e.y = {2 * e.queries * width, width, 2 * width};
    e.k = e.v = {e.keys * width, e.keys * width, width};
    q = m.floats(dtype, 2 * e.queries * width);
    k = m.floats(dtype, e.keys * width);
    v = m.floats(dtype, e.keys * width);
    y = m.floats(dtype, 2 * e.queries * width);
    statistics = m.floats(2 * e.queries);
  }
  AttentionGradient gradient(Buffers& m, bool kept, size_t scratch) const {
    const AttentionParams& e = extent;
    AttentionGradient g;
    g.dy = m.floats(e.dtype, 2 * e.queries * e.width);
    g.q = q;
    g.k = k;
    g.v = v;
    g.dq = m.floats(e.dtype, 2 * e.queries * e.width);
    g.dk = m.floats(e.dtype, e.keys * e.width);
    g.dv = m.floats(e.dtype, e.keys * e.width);
    g.scratch = m.zeros(scratch);
    if (!kept) return g;
    g.y = y;
    g.y_strides = e.y;
    g.statistics = statistics;
    return g;
  }
};

// Both ways, or without `all` one way for each kind of mask.
std::vector<bool> kept_or_not(const Table& table, bool causal) {
  return table.all() ? std::vector<bool>{true, false} : std::vector<bool>{causal};
}

void add_tensor_cores(Table& table, DType dtype, int64_t width, bool causal) {
  using namespace kernels::cuda;
  const char* const seen = causal ? "causal" : "whole";
  table.row(named("tensor attention", dtype, width, seen), [=](Buffers& m) {
    const Heads h(m, dtype, width, causal);
    return tensor_attention(h.extent, h.q, h.k, h.v, h.y, h.statistics, nullptr);
  });
  for (const bool kept : kept_or_not(table, causal)) {
    const char* const how = kept ? "kept" : "anew";
    table.row(named("tensor attention gradient", dtype, width, seen, how), [=](Buffers& m) {
      const Heads h(m, dtype, width, causal);
      const size_t scratch = attention_grad_scratch(h.extent, kept);
      return tensor_attention_grad(h.extent, h.gradient(m, kept, scratch), nullptr);
    });
  }
}

void add_cuda_cores(Table& table, DType dtype, int64_t width, bool causal) {
  using namespace kernels::cuda;
  const char* const seen = causal ? "causal" : "whole";
  table.row(named("attention", dtype, width, seen), [=](Buffers& m) {
    const Heads h(m, dtype, width, causal, 40, 70);
    return attention(h.extent, h.q, h.k, h.v, h.y, h.statistics, nullptr);
  });
  for (const bool kept : kept_or_not(table, causal)) {
    const char* const how = kept ? "kept" : "anew";
    table.row(named("attention gradient", dtype, width, seen, how), [=](Buffers& m) {
      const Heads h(m, dtype, width, causal, 40, 70);
      const size_t scratch = attention_grad_scratch(h.extent, kept);
      return attention_grad(h.extent, h.gradient(m, kept, scratch), nullptr);
    });
  }
}

// A padding mask, read once a key, and an additive one with a gradient.
void add_masked(Table& table, bool additive) {
  using namespace kernels::cuda;
  const char* const kind = additive ? "additive" : "padding";
  table.row(named("tensor attention with a mask", kind), [=](Buffers& m) {
    Heads h(m, DType::kBFloat16, 32, false);
    AttentionParams& e = h.extent;
    e.mask_kind = additive ? MaskKind::kFloat : MaskKind::kBool;
    e.mask_keys = e.keys;
    e.mask_strides[2] = additive ? e.keys : 0;
    e.mask_strides[3] = 1;
    e.mask = additive ? m.floats(e.dtype, e.queries * e.keys) : m.whole<uint8_t>(e.keys, 2);
    if (const cudaError_t error = tensor_attention(e, h.q, h.k, h.v, h.y, h.statistics, nullptr);
        error != cudaSuccess) {
      return error;
    }
    AttentionGradient g = h.gradient(m, true, attention_grad_scratch(e, true));
    if (additive) g.dmask = m.floats(e.dtype, 2 * e.queries * e.keys);
    return tensor_attention_grad(e, g, nullptr);
  });
}

// Masks in the form for cuDNN, and the samples left to our kernels.
void add_for_cudnn(Table& table, bool additive) {
  using namespace kernels::cuda;
  table.row(named("masks for cuDNN", additive ? "additive" : "padding"), [=](Buffers& m) {
    Heads h(m, DType::kBFloat16, 32, false);
    AttentionParams& e = h.extent;
    e.mask_kind = additive ? MaskKind::kFloat : MaskKind::kBool;
    e.mask_keys = e.keys;
    e.mask_strides[3] = 1;
    e.mask = additive ? m.floats(e.dtype, e.keys) : m.whole<uint8_t>(e.keys, 2);
    const SampleLengths lengths{m.whole<int32_t>(1, 1), m.whole<int32_t>(1, 1),
                                m.whole<int32_t>(1, 1)};
    void* const bias = m.zeros(mask_bias_shape(e).bytes(e.dtype));
    const AttentionGradient g = h.gradient(m, true, attention_grad_scratch(e, true));
    e.wanted = lengths.apart;
    for (const cudaError_t error :
         {sample_lengths(e, 1, lengths, nullptr), mask_bias(e, bias, lengths.apart, nullptr),
          zero_hidden_keys(e, lengths.keys, g.dk, g.dv, nullptr),
          tensor_attention(e, h.q, h.k, h.v, h.y, h.statistics, nullptr)}) {
      if (error != cudaSuccess) return error;
    }
    return tensor_attention_grad(e, g, nullptr);
  });
}

}  // namespace

void add_attention_rows(Table& table) {
  for (const bool causal : {true, false}) {
    for (const int64_t width :
         table.all() ? std::vector<int64_t>{32, 64, 96, 128} : std::vector<int64_t>{32}) {
      for (const DType dtype : table.some({DType::kBFloat16, DType::kFloat16})) {
        add_tensor_cores(table, dtype, width, causal);
      }
    }
    for (const int64_t width : table.some<int64_t>({32, 64, 160})) {
      for (const DType dtype : table.some({DType::kFloat32, DType::kBFloat16})) {
        add_cuda_cores(table, dtype, width, causal);
      }
    }
  }
  add_masked(table, false);
  add_masked(table, true);
  add_for_cudnn(table, false);
  add_for_cudnn(table, true);
  for (const bool packed : {false, true}) {
    table.row(named("rotary", packed ? "packed" : "heads"), [=](Buffers& m) {
      kernels::cuda::RotaryParams e;
      e.dtype = DType::kBFloat16;
      e.batch = 2;
      e.heads = 3;
      e.steps = 9;
      e.width = e.dim = 16;
      e.packed = packed;
      e.cache_rows = 18;
      void* const x = m.floats(e.dtype, 2 * 3 * 9 * 16);
      return rotate(e, x, m.floats(e.dtype, 18 * 8), m.floats(e.dtype, 18 * 8), x, nullptr);
    });
  }
}

}  // namespace ofsdp::races
