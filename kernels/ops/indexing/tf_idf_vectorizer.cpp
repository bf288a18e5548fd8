// TfIdfVectorizer(x [C] or [N, C], integers) counts per row how often each n-gram in pool_int64s
// occurs: float32 [max(ngram_indexes) + 1], or one such row per row. An n-gram occurs if its
// numbers lie d apart, for any d from 1 to max_skip_count + 1 (only 1 if n = 1). Mode TF counts,
// IDF tells whether it occurs, TFIDF counts too; IDF and TFIDF multiply by `weights`, indexed by
// result column, as in ONNX Runtime. No gradient, no strings.
// https://onnx.ai/onnx/operators/onnx__TfIdfVectorizer.html
#include <algorithm>
#include <map>

#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace tf_idf_vectorizer {
namespace {

using Ints = std::vector<int64_t>;

struct Grams {
  std::vector<std::map<Ints, int64_t>> columns;  // for grams of 1 number, 2, ...
  int64_t shortest, longest, skips, size;
  std::string mode;
  std::vector<float> weights;
};

Result<Grams> grams_of(const Attributes& a) {
  const Ints pool = a.ints("pool_int64s", {}), starts = a.ints("ngram_counts", {}),
             indexes = a.ints("ngram_indexes", {});
  Grams g{{},
          a.i("min_gram_length", 1),
          a.i("max_gram_length", 1),
          a.i("max_skip_count", 0),
          0,
          a.s("mode", "TF"),
          a.get("weights", std::vector<float>{})};
  if (pool.empty() || indexes.empty() || std::ranges::min(indexes) < 0) {
    return input_error(
        "expected pool_int64s and ngram_indexes of at least 0, found {} and {} numbers",
        pool.size(), indexes.size());
  }
  g.size = std::ranges::max(indexes) + 1;
  size_t next = 0;
  for (size_t n = 1; n <= starts.size(); ++n) {
    const auto begin = static_cast<size_t>(starts[n - 1]);
    const size_t end = n < starts.size() ? static_cast<size_t>(starts[n]) : pool.size();
    if (begin > end || end > pool.size() || (end - begin) / n > indexes.size() - next) {
      return input_error(
          "attribute 'ngram_counts': expected rising places of {} numbers with an index for each "
          "gram, found {}",
          pool.size(), starts[n - 1]);
    }
    auto& made = g.columns.emplace_back();
    for (size_t at = begin; at + n <= end; at += n) {
      const auto first = pool.begin() + static_cast<std::ptrdiff_t>(at);
      made[Ints(first, first + static_cast<std::ptrdiff_t>(n))] = indexes[next++];
    }
  }
  const bool fits = g.weights.empty() || static_cast<int64_t>(g.weights.size()) >= g.size;
  if (fits) return g;
  return input_error("attribute 'weights': expected {} numbers, found {}", g.size,
                     g.weights.size());
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  OFSDP_ASSIGN_OR_RETURN(const Grams g, grams_of(c.attributes));
  const TensorDesc& x = c.inputs[0];
  const bool whole = x.dtype == DType::kInt32 || x.dtype == DType::kInt64;
  if (!whole || x.shape.rank() < 1 || x.shape.rank() > 2) {
    return input_error("expected int32 or int64 [C] or [N, C], found {}", x.text());
  }
  const Shape y = x.shape.rank() == 1 ? Shape{g.size} : Shape{x.shape[0], g.size};
  return std::vector{TensorDesc{DType::kFloat32, y}};
}

// Adds one row's counts to y; `gram` is scratch.
template <typename T, typename Y>
void count(const Grams& g, const T* x, int64_t length, Y* y, Ints& gram) {
  const auto known = static_cast<int64_t>(g.columns.size());
  for (int64_t n = g.shortest; n <= std::min(g.longest, known); ++n) {
    const auto& columns = g.columns[static_cast<size_t>(n - 1)];
    for (int64_t step = 1; step <= (n == 1 ? 1 : g.skips + 1); ++step) {
      for (int64_t first = 0; first + (n - 1) * step < length; ++first) {
        gram.resize(static_cast<size_t>(n));
        for (int64_t k = 0; k < n; ++k)
          gram[static_cast<size_t>(k)] = static_cast<int64_t>(x[first + k * step]);
        const auto found = columns.find(gram);
        if (found != columns.end()) y[found->second] += 1;
      }
    }
  }
}

template <typename Y>
void weigh(const Grams& g, Y* y) {
  for (int64_t i = 0; g.mode != "TF" && i < g.size; ++i) {
    if (g.mode == "IDF" && y[i] > 0) y[i] = 1;
    if (!g.weights.empty()) y[i] *= static_cast<Y>(g.weights[static_cast<size_t>(i)]);
  }
}

int64_t row_length(const TensorDesc& x) { return x.shape[x.shape.rank() - 1]; }
int64_t row_count(const TensorDesc& x) { return x.shape.numel(0, x.shape.rank() - 1); }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  const Grams g = *grams_of(c.attributes);
  const RefTensor& x = c.inputs[0];
  RefTensor y = zeros(c.output_descs[0]);
  Ints gram;
  for (int64_t row = 0; row < row_count(x.desc); ++row) {
    double* to = y.values.data() + row * g.size;
    count(g, x.values.data() + row * row_length(x.desc), row_length(x.desc), to, gram);
    weigh(g, to);
  }
  return {y};
}

std::unique_ptr<Kernel> create(const Problem& p) {
  Ints gram;
  gram.reserve(static_cast<size_t>(std::max<int64_t>(p.attributes.i("max_gram_length", 1), 1)));
  return make_kernel([g = *grams_of(p.attributes), x = p.in(0), gram](const KernelArgs& a) mutable {
    for (int64_t row = 0; row < row_count(x); ++row) {
      float* y = a.out<float>(0) + row * g.size;
      std::fill_n(y, g.size, 0.0f);
      const int64_t from = row * row_length(x);
      if (x.dtype == DType::kInt32) {
        count(g, a.in<int32_t>(0) + from, row_length(x), y, gram);
      } else {
        count(g, a.in<int64_t>(0) + from, row_length(x), y, gram);
      }
      weigh(g, y);
    }
  });
}

}  // namespace
}  // namespace tf_idf_vectorizer

void add_tf_idf_vectorizer(Registry& registry) {
  using namespace tf_idf_vectorizer;
  registry.add(make_op("TfIdfVectorizer", {infer, no_grad, reference},
                       {{"loops", accepts_plain, create}}, {.first_opset = 9}));
}

}  // namespace ofsdp::kernels::ops
