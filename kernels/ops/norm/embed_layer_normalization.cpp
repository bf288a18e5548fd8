// com.microsoft.EmbedLayerNormalization(input_ids, segment_ids, word_embedding, position_embedding,
// segment_embedding, gamma, beta, mask, position_ids) adds rows from three tables (segments may be
// absent; without position_ids, positions count from 0), then applies LayerNormalization over the
// last axis. Output 1 is each sample's word count: the ones in its mask row (0 without a mask).
// Output 2 is the sum.
//
// It has no kernel: the body is Gather, Add, LayerNormalization, ReduceSum.
// https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
#include <cmath>

#include "kernels/core/op_def.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace embed_layer_normalization {
namespace {

enum Input : size_t {
  kIds,
  kSegmentIds,
  kWords,
  kPositions,
  kSegments,
  kGamma,
  kBeta,
  kMask,
  kPositionIds
};

Status check_table(const InferContext& c, size_t table, const char* name, int64_t width) {
  const TensorDesc desc = c.has(table) ? c.inputs[table] : TensorDesc{};
  if (desc.shape.rank() == 2 && desc.shape[1] == width) return ok_status();
  return input_error("input '{}': expected rows of {}, found {}", name, width,
                     desc.present() ? desc.text() : "none");
}

Status check_ids(const InferContext& c, size_t input, const char* name, bool one_row) {
  if (!c.has(input)) return ok_status();
  Shape expected = c.inputs[kIds].shape;
  const bool fits = c.inputs[input].shape == expected;
  expected[0] = 1;
  if (fits || (one_row && c.inputs[input].shape == expected)) return ok_status();
  return input_error("input '{}': expected {}, found {}", name, c.inputs[kIds].shape.text(),
                     c.inputs[input].text());
}

float epsilon_of(const Attributes& attributes) { return attributes.f("epsilon", 1e-12f); }

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape& ids = c.inputs[kIds].shape;
  if (ids.rank() != 2 || !c.has(kWords) || c.inputs[kWords].shape.rank() != 2) {
    return input_error("expected word ids [B, S] and a table of two axes, found {} and {}",
                       c.inputs[kIds].text(), c.has(kWords) ? c.inputs[kWords].text() : "none");
  }
  const TensorDesc& words = c.inputs[kWords];
  const int64_t width = words.shape[1];
  OFSDP_RETURN_IF_ERROR(check_table(c, kPositions, "position_embedding", width));
  if (c.has(kSegments)) {
    OFSDP_RETURN_IF_ERROR(check_table(c, kSegments, "segment_embedding", width));
  }
  if (c.has(kSegments) != c.has(kSegmentIds)) {
    return input_error("segment_ids and segment_embedding must come together");
  }
  OFSDP_RETURN_IF_ERROR(check_ids(c, kSegmentIds, "segment_ids", false));
  OFSDP_RETURN_IF_ERROR(check_ids(c, kMask, "mask", false));
  OFSDP_RETURN_IF_ERROR(check_ids(c, kPositionIds, "position_ids", true));
  for (const size_t i : {kGamma, kBeta}) {
    if (c.has(i) && c.inputs[i].shape == Shape{width}) continue;
    return input_error("expected gamma and beta [{}], found {}", width,
                       c.has(i) ? c.inputs[i].text() : "none");
  }
  if (!c.has(kPositionIds) && c.inputs[kPositions].shape[0] < ids[1]) {
    return input_error("input 'position_embedding': expected at least {} rows, found {}", ids[1],
                       c.inputs[kPositions].text());
  }
  const TensorDesc sum{words.dtype, {ids[0], ids[1], width}};
  return std::vector{sum, TensorDesc{DType::kInt32, {ids[0]}}, sum};
}

Ref rows_of(BodyBuilder& b, Input table, Ref ids) {
  return b.emit1("Gather", {b.input(table), ids}, {{"axis", int64_t{0}}});
}

// Returns the position rows; the table's first rows are a view.
Ref position_rows(BodyBuilder& b, int64_t steps) {
  if (b.input(kPositionIds)) return rows_of(b, kPositions, b.input(kPositionIds));
  return b.slice(b.input(kPositions), 0, 0, steps);
}

Ref word_counts(BodyBuilder& b) {
  const Shape ids = b.desc(b.input(kIds)).shape;
  if (!b.input(kMask)) {
    return b.emit1("Expand", {b.scalar(DType::kInt32, 0), b.ints({ids[0]})});
  }
  const Ref ones =
      b.cast(b.emit1("Equal", {b.input(kMask), b.like(b.input(kMask), 1)}), DType::kInt32);
  return b.emit1("ReduceSum", {ones, b.ints({1})}, {{"keepdims", int64_t{0}}});
}

void body(BodyBuilder& b) {
  Ref sum = rows_of(b, kWords, b.input(kIds));
  const Ref places = position_rows(b, b.desc(b.input(kIds)).shape[1]);
  sum = b.add(sum, places);
  if (b.input(kSegments)) {
    const Ref segments = rows_of(b, kSegments, b.input(kSegmentIds));
    sum = b.add(sum, segments);
  }
  b.set_output(0, b.emit1("LayerNormalization", {sum, b.input(kGamma), b.input(kBeta)},
                          {{"axis", int64_t{-1}}, {"epsilon", epsilon_of(b.attributes())}}));
  if (b.wants(1)) b.set_output(1, word_counts(b));
  if (b.wants(2)) b.set_output(2, sum);
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const RefTensor& ids = c.inputs[kIds];
  const int64_t steps = ids.desc.shape[1], width = c.inputs[kWords].desc.shape[1];
  const RefTensor *segments = given(c.inputs, kSegmentIds), *mask = given(c.inputs, kMask),
                  *places = given(c.inputs, kPositionIds);
  RefTensor sum = zeros({c.output_descs[0].dtype, c.output_descs[0].shape}), y = sum;
  const auto row = [&](Input table, double id) {
    const int64_t rows = c.inputs[table].desc.shape[0], at = static_cast<int64_t>(id);
    return (at < 0 ? at + rows : at) * width;
  };
  for (int64_t r = 0; r < ids.desc.numel(); ++r) {
    const double place =
        places == nullptr ? static_cast<double>(r % steps) : (*places)[r % places->desc.numel()];
    double mean = 0, square = 0;
    for (int64_t i = 0; i < width; ++i) {
      double& v = sum[r * width + i];
      v = c.inputs[kWords][row(kWords, ids[r]) + i] +
          c.inputs[kPositions][row(kPositions, place) + i];
      if (segments != nullptr) v += c.inputs[kSegments][row(kSegments, (*segments)[r]) + i];
      mean += v / static_cast<double>(width);
    }
    for (int64_t i = 0; i < width; ++i) square += std::pow(sum[r * width + i] - mean, 2);
    const double spread = std::sqrt(square / static_cast<double>(width) +
                                    static_cast<double>(epsilon_of(c.attributes)));
    for (int64_t i = 0; i < width; ++i) {
      y[r * width + i] =
          (sum[r * width + i] - mean) / spread * c.inputs[kGamma][i] + c.inputs[kBeta][i];
    }
  }
  RefTensor counts = zeros({DType::kInt32, {ids.desc.shape[0]}});
  for (int64_t i = 0; mask != nullptr && i < mask->desc.numel(); ++i) {
    counts[i / steps] += (*mask)[i] == 1 ? 1 : 0;
  }
  std::vector<RefTensor> made{y, counts, sum};
  made.resize(c.output_descs.size());
  return made;
}

}  // namespace
}  // namespace embed_layer_normalization

void add_embed_layer_normalization(Registry& registry) {
  using namespace embed_layer_normalization;
  registry.add(make_op("EmbedLayerNormalization", {infer, nullptr, reference}, {},
                       {.domain = "com.microsoft", .body = body, .lookup_inputs = {2, 3, 4}}));
}

}  // namespace ofsdp::kernels::ops
