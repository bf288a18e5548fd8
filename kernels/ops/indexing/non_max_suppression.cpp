// NonMaxSuppression(boxes [N, B, 4], scores [N, C, B], most, iou_threshold, score_threshold); the
// last three have one element and may be absent (0, 0, none). For each batch and class, takes boxes
// in falling score order until there are `most`; among equal scores the lower index comes first.
// Leaves out a box if it overlaps a taken one by more than iou_threshold, or if its score is not
// above score_threshold. The result is [selected, 3]: batch, class, box. Boxes are two corners
// [y, x, y, x] or, with center_point_box = 1, [x, y, width, height]. The overlap is the
// intersection's area over the union's.
//
// The values decide the shape, so all inputs must be known while planning. No gradient.
// https://onnx.ai/onnx/operators/onnx__NonMaxSuppression.html
#include <algorithm>
#include <numeric>
#include <optional>

#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace non_max_suppression {
namespace {

using Values = std::vector<double>;

struct Box {
  double x0, x1, y0, y1;
  double area() const { return (x1 - x0) * (y1 - y0); }
};

struct Selection {
  int64_t boxes = 0, classes = 0, batches = 0;
  bool centred = false;
  Values box_values, scores;
  double most = 0, overlap = 0;
  std::optional<double> least;

  Box box(int64_t batch, int64_t i) const {
    const double* v = box_values.data() + (batch * boxes + i) * 4;
    if (centred) return {v[0] - v[2] / 2, v[0] + v[2] / 2, v[1] - v[3] / 2, v[1] + v[3] / 2};
    return {std::min(v[1], v[3]), std::max(v[1], v[3]), std::min(v[0], v[2]), std::max(v[0], v[2])};
  }
};

bool overlaps(const Box& a, const Box& b, double threshold) {
  const double width = std::min(a.x1, b.x1) - std::max(a.x0, b.x0);
  const double height = std::min(a.y1, b.y1) - std::max(a.y0, b.y0);
  if (width <= 0 || height <= 0 || a.area() <= 0 || b.area() <= 0) return false;
  const double shared = width * height;
  return static_cast<float>(shared / (a.area() + b.area() - shared)) >
         static_cast<float>(threshold);
}

// Returns boxes above the score threshold, highest first.
std::vector<int64_t> candidates(const Selection& s, const double* scores) {
  std::vector<int64_t> list(static_cast<size_t>(s.boxes));
  std::iota(list.begin(), list.end(), 0);
  if (s.least) std::erase_if(list, [&](int64_t i) { return !(scores[i] > *s.least); });
  std::ranges::stable_sort(list, [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  return list;
}

// Returns batch, class and box for each selection.
std::vector<int64_t> select(const Selection& s) {
  std::vector<int64_t> made;
  for (int64_t row = 0; row < s.batches * s.classes; ++row) {
    const int64_t batch = row / s.classes;
    std::vector<Box> taken;
    for (const int64_t i : candidates(s, s.scores.data() + row * s.boxes)) {
      if (static_cast<double>(taken.size()) >= s.most) break;
      const Box box = s.box(batch, i);
      const auto near = [&](const Box& other) { return overlaps(box, other, s.overlap); };
      if (std::ranges::any_of(taken, near)) continue;
      taken.push_back(box);
      made.insert(made.end(), {batch, row % s.classes, i});
    }
  }
  return made;
}

// `values(i)` returns input i's values, none if it is absent.
Selection selection(const Attributes& attributes, const Shape& boxes, const Shape& scores,
                    const auto& values) {
  Selection s;
  s.boxes = boxes[1];
  s.classes = scores[1];
  s.batches = boxes[0];
  s.centred = attributes.i("center_point_box", 0) != 0;
  s.box_values = values(0);
  s.scores = values(1);
  const auto number = [&](size_t i) {
    const Values found = values(i);
    return found.empty() ? std::nullopt : std::optional(found[0]);
  };
  s.most = number(2).value_or(0);
  s.overlap = number(3).value_or(0);
  s.least = number(4);
  return s;
}

Selection known_selection(const Attributes& attributes, const std::vector<ConstantPtr>& constants) {
  return selection(attributes, constants[0]->desc.shape, constants[1]->desc.shape, [&](size_t i) {
    if (i >= constants.size() || constants[i] == nullptr) return Values();
    return to_doubles(constants[i]->desc, constants[i]->bytes.data());
  });
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Shape &boxes = c.inputs[0].shape, &scores = c.inputs[1].shape;
  const bool fits = boxes.rank() == 3 && scores.rank() == 3 && boxes[2] == 4 &&
                    boxes[0] == scores[0] && boxes[1] == scores[2];
  if (!fits) {
    return input_error("expected boxes [N, B, 4] and scores [N, C, B], found {} and {}",
                       c.inputs[0].text(), c.inputs[1].text());
  }
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    if (!c.has(i) || c.constant(i) != nullptr) continue;
    return input_error(
        "input {} must be known before the run, found a computed value: the number of boxes that "
        "are selected is the shape of the output",
        i);
  }
  const auto made = static_cast<int64_t>(select(known_selection(c.attributes, c.constants)).size());
  return std::vector{TensorDesc{DType::kInt64, {made / 3, 3}}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const auto values = [&](size_t i) {
    const RefTensor* found = given(c.inputs, i);
    return found == nullptr ? Values() : found->values;
  };
  const auto made =
      select(selection(c.attributes, c.inputs[0].desc.shape, c.inputs[1].desc.shape, values));
  return {{c.output_descs[0], Values(made.begin(), made.end())}};
}

Acceptance accepts(const Problem& p) {
  return accept_if(p.constant(0) != nullptr && p.constant(1) != nullptr, "a computed input");
}

// The importer folds it: planning computes the values.
std::unique_ptr<Kernel> create(const Problem& p) {
  return make_kernel(
      [made = select(known_selection(p.attributes, p.constants))](const KernelArgs& a) {
        std::copy(made.begin(), made.end(), a.out<int64_t>(0));
      });
}

}  // namespace
}  // namespace non_max_suppression

void add_non_max_suppression(Registry& registry) {
  using namespace non_max_suppression;
  registry.add(make_op("NonMaxSuppression", {infer, nullptr, reference},
                       {{"copy", accepts, create}},
                       {.min_inputs = 2, .first_opset = 10, .constant_inputs = {0, 1, 2, 3, 4}}));
}

}  // namespace ofsdp::kernels::ops
