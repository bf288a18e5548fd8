// The doctor's findings on trained weights that look like fixed preprocessing. Their numbers and
// their place in the graph tell, not their names:
//
//   sinusoids      of a Fourier or constant-Q transform: each filter has its energy at one
//                  frequency, and the frequencies rise from filter to filter
//   a filter bank  such as mel's: no number below 0, each filter rises and falls over neighbours,
//                  and the peaks move on
//   a normalization  numbers along one axis that an input meets first: in a Sub, Mul or Div
//
// A filter: the weights of one output of a Conv, MatMul or Gemm.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "importer/graph/graph.h"
#include "kernels/base/shell_words.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 24;  // of a weight that is looked at
constexpr size_t kFewestFilters = 8;

// Filters of `length` numbers each.
class Filters {
 public:
  // A matrix [rows, columns]; `by_column`: a column is a filter.
  Filters(std::vector<float> values, int64_t rows, int64_t columns, bool by_column)
      : values_(std::move(values)),
        count_(static_cast<size_t>(by_column ? columns : rows)),
        length_(static_cast<size_t>(by_column ? rows : columns)),
        by_column_(by_column) {}

  size_t count() const { return count_; }
  size_t length() const { return length_; }
  std::vector<double> filter(size_t f) const {
    std::vector<double> made(length_);
    for (size_t i = 0; i < length_; ++i) {
      made[i] = values_[by_column_ ? i * count_ + f : f * length_ + i];
    }
    return made;
  }
  const std::vector<float>& values() const { return values_; }

 private:
  std::vector<float> values_;
  size_t count_, length_;
  bool by_column_;
};

double most(const std::vector<double>& filter) {
  double found = 0;
  for (const double v : filter) found = std::max(found, std::abs(v));
  return found;
}

// Returns the length of the part that is not almost 0.
size_t support(const std::vector<double>& filter) {
  const double least = 1e-3 * most(filter);
  const auto counts = [&](double v) { return std::abs(v) > least; };
  const auto first = std::ranges::find_if(filter, counts);
  const auto last = std::find_if(filter.rbegin(), filter.rend(), counts);
  return static_cast<size_t>(last.base() - first);
}

// Returns the energy at length + 1 frequencies from 0 to half the rate: two a bin of the DFT.
std::vector<double> spectrum(const std::vector<double>& filter) {
  std::vector<double> energies;
  for (size_t k = 0; k <= filter.size(); ++k) {
    const double angle =
        std::numbers::pi * static_cast<double>(k) / static_cast<double>(filter.size());
    const double turn = 2 * std::cos(angle);  // Goertzel's recurrence
    double last = 0, before = 0;
    for (const double v : filter) {
      const double next = v + turn * last - before;
      before = last;
      last = next;
    }
    energies.push_back(last * last + before * before - turn * last * before);
  }
  return energies;
}

// The frequency where a filter has its energy.
struct Tone {
  bool decided = false;  // the filter is long enough to tell
  bool pure = false;     // most of the energy is there, within a window's main lobe
  size_t frequency = 0;
};

Tone tone_of(const std::vector<double>& filter) {
  constexpr double kPure = 0.9;
  const size_t n = filter.size();
  const auto lobe = static_cast<size_t>(
      std::ceil(4.0 * static_cast<double>(n) / static_cast<double>(support(filter))));
  if (3 * (2 * lobe + 1) > n + 1) return {};
  const std::vector<double> energies = spectrum(filter);
  double near = 0, all = 0;
  const auto peak = static_cast<size_t>(std::ranges::max_element(energies) - energies.begin());
  for (size_t k = 0; k <= n; ++k) {
    all += energies[k];
    if (k + lobe >= peak && k <= peak + lobe) near += energies[k];
  }
  return {true, near >= kPure * all, peak};
}

// Tries some filters. Half of them pure are enough: learned weights have none. A rectangular window
// leaves less energy in its main lobe. Frequencies may fall once: cosines come before sines.
bool are_sinusoids(const Filters& filters) {
  constexpr size_t kTried = 16;
  constexpr size_t kLongest = 8192;
  if (filters.count() < kFewestFilters || filters.length() > kLongest) return false;
  std::vector<size_t> live;
  for (size_t f = 0; f < filters.count(); ++f) {
    if (most(filters.filter(f)) > 0) live.push_back(f);
  }
  const size_t tried = std::min(kTried, live.size());
  if (tried < kFewestFilters) return false;
  size_t decided = 0, pure = 0, falls = 0, before = 0;
  for (size_t i = 0; i < tried; ++i) {
    const Tone tone = tone_of(filters.filter(live[(live.size() - 1) * i / (tried - 1)]));
    if (!tone.decided) continue;
    falls += decided > 0 && tone.frequency < before ? 1 : 0;
    before = tone.frequency;
    ++decided;
    pure += tone.pure ? 1 : 0;
  }
  return decided >= kFewestFilters && 2 * pure >= decided && falls <= 1;
}

// Returns whether numbers above 0 are neighbours that rise to `peak` and fall.
bool rises_and_falls(const std::vector<double>& filter, size_t peak) {
  const auto above = [](double v) { return v > 0; };
  const auto first = std::ranges::find_if(filter, above);
  const auto end = std::find_if(filter.rbegin(), filter.rend(), above).base();
  const auto top = filter.begin() + static_cast<std::ptrdiff_t>(peak);
  return std::all_of(first, end, above) && std::is_sorted(first, top + 1) &&
         std::is_sorted(top, end, std::greater<>());
}

bool are_bank(const Filters& filters) {
  constexpr size_t kShortest = 16;
  const std::vector<float>& values = filters.values();
  if (filters.count() < kFewestFilters || filters.length() < kShortest) return false;
  if (std::ranges::any_of(values, [](float v) { return !(v >= 0); })) return false;
  if (2 * static_cast<size_t>(std::ranges::count(values, 0.0f)) < values.size()) return false;
  size_t before = 0, live = 0, wide = 0;
  for (size_t f = 0; f < filters.count(); ++f) {
    const std::vector<double> filter = filters.filter(f);
    if (most(filter) == 0) continue;
    const auto peak = static_cast<size_t>(std::ranges::max_element(filter) - filter.begin());
    if (peak < before || !rises_and_falls(filter, peak)) return false;
    before = peak;
    ++live;
    wide += support(filter) > 2 ? 1 : 0;
  }
  return live >= kFewestFilters && 4 * wide >= live;  // a unit matrix has none
}

class Preprocessing {
 public:
  explicit Preprocessing(const ModelSetup& setup)
      : setup_(setup), graph_(setup.graph), uses_(graph_) {}

  Status look() {
    for (const Parameter& p : graph_.parameters) {
      const TensorDesc& desc = graph_.value(p.value).desc;
      const bool fits = p.trained && !p.raw && !p.of_teacher && desc.numel() <= kMostElements;
      if (fits) OFSDP_RETURN_IF_ERROR(look_at(p, desc.shape));
    }
    return {};
  }

  void say(Findings& findings) const {
    add(findings, sinusoids_, "the sinusoids of a Fourier or constant-Q transform");
    add(findings, banks_, "a filter bank such as mel's");
    add(findings, normalizations_, "the normalization of an input");
  }

 private:
  Status look_at(const Parameter& p, const Shape& shape) {
    for (const size_t reader : uses_.readers(p.value)) {
      const Node& node = graph_.nodes[reader];
      if (normalizes(node, p.value)) {
        normalizations_.push_back(p.name);
        return {};
      }
      const auto [rows, columns, by_column] = matrix(node, p.value, shape);
      if (std::min(rows, columns) < static_cast<int64_t>(kFewestFilters)) continue;
      std::vector<float> values(static_cast<size_t>(shape.numel()));
      const OnnxFile& file = setup_.source->file_of(p);
      OFSDP_RETURN_IF_ERROR(
          file.read(file.initializers()[static_cast<size_t>(p.initializer)], 0, values));
      const Filters filters(std::move(values), rows, columns, by_column);
      if (are_sinusoids(filters)) {
        sinusoids_.push_back(p.name);
      } else if (are_bank(filters)) {
        banks_.push_back(p.name);
      }
      return {};
    }
    return {};
  }

  struct Matrix {
    int64_t rows = 0, columns = 0;
    bool by_column = false;
  };

  // Returns the weight as a matrix of filters; 0 rows: it has none.
  static Matrix matrix(const Node& node, ValueId weight, const Shape& shape) {
    const std::string op = node.op->full_name();
    const bool right = node.inputs.size() > 1 && node.inputs[1] == weight;
    if (op == "Conv" && right && shape.rank() > 2) {
      int64_t longest = 1;
      for (int i = 2; i < shape.rank(); ++i) longest = std::max(longest, shape[i]);
      const int64_t columns = shape.numel(1, shape.rank());
      const bool along_one = columns == longest || columns == shape[1];
      return along_one ? Matrix{shape[0], columns, false} : Matrix{};
    }
    if (shape.rank() != 2) return {};
    if (op == "MatMul") return {shape[0], shape[1], right};
    if (op == "Gemm" && right) {
      return {shape[0], shape[1], node.attributes.i("transB", 0) == 0};
    }
    return {};
  }

  // Returns whether the node subtracts the numbers, along one axis, from an input, multiplies or
  // divides it. An Add may be a learned bias.
  bool normalizes(const Node& node, ValueId numbers) const {
    static const std::set<std::string> kOps = {"Sub", "Mul", "Div"};
    if (!kOps.contains(node.op->full_name()) || node.inputs.size() != 2) return false;
    const Shape& shape = graph_.value(numbers).desc.shape;
    const auto longer = std::ranges::count_if(shape.axes(), [](int64_t n) { return n > 1; });
    return longer <= 1 && is_input(node.inputs[node.inputs[0] == numbers ? 1 : 0]);
  }

  // Returns whether the value is an input, moved, cast or normalized.
  bool is_input(ValueId id) const {
    static const std::set<std::string> kPassed = {
        "Add", "Sub", "Mul", "Div", "Cast", "Transpose", "Identity", "Unsqueeze", "Squeeze"};
    while (const int at = uses_.maker(id) + 1) {
      const Node& node = graph_.nodes[static_cast<size_t>(at - 1)];
      if (!kPassed.contains(node.op->full_name())) return false;
      const bool second = node.inputs.size() == 2 && is_constant(node.inputs[0]);
      if (node.inputs.size() == 2 && !second && !is_constant(node.inputs[1])) return false;
      id = node.inputs[second ? 1 : 0];
    }
    return graph_.value(id).kind == ValueKind::kInput;
  }
  bool is_constant(ValueId id) const {
    const ValueKind kind = graph_.value(id).kind;
    return kind == ValueKind::kParameter || kind == ValueKind::kConstant;
  }

  static void add(Findings& findings, const std::vector<std::string>& names, const char* what) {
    if (names.empty()) return;
    std::vector<std::string> words;
    for (const std::string& name : names) words.insert(words.end(), {"--freeze", name});
    const bool one = names.size() == 1;
    findings.add(format_text("preprocessing: {} {} like {}, and would be trained",
                             some_names(names), one ? "looks" : "look", what),
                 escaped(base::shell_line(words)) + (one ? " keeps it" : " keeps them"));
  }

  const ModelSetup& setup_;
  const Graph& graph_;
  GraphUses uses_;
  std::vector<std::string> sinusoids_, banks_, normalizations_;
};

}  // namespace

Status check_preprocessing(const ModelSetup& setup, Findings& findings) {
  Preprocessing preprocessing(setup);
  OFSDP_RETURN_IF_ERROR(preprocessing.look());
  preprocessing.say(findings);
  return {};
}

}  // namespace ofsdp::runtime
