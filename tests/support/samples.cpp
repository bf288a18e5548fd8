#include "tests/support/samples.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>

#include "kernels/base/text.h"
#include "kernels/core/op_def.h"
#include "kernels/ops/conv/window.h"
#include "tests/support/namespaces.h"

namespace ofsdp::testing {
namespace {

using Numbers = std::vector<double>;
using Words = std::vector<std::string>;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what); }

double number(const std::string& text) {
  size_t used = 0;
  const double value = std::stod(text, &used);
  return used == text.size() ? value : (fail("not a number: " + text), 0);
}

int64_t integer(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) fail("not an integer: " + text);
  return value;
}

// Splits at `separator` outside quotes and brackets.
Words split(std::string_view text, char separator) {
  Words words(1);
  int depth = 0;
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (!quoted && std::string_view("[({").find(c) != std::string_view::npos) ++depth;
    if (!quoted && std::string_view("])}").find(c) != std::string_view::npos) --depth;
    if (c == separator && depth == 0 && !quoted) {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  std::erase(words, "");
  return words;
}

// Splits the text between the first `open` and the last character of "head(a,b)".
Words arguments_of(const std::string& text, char open) {
  const size_t at = text.find(open);
  return at == std::string::npos
             ? Words{}
             : split(std::string_view(text).substr(at + 1, text.size() - at - 2), ',');
}

template <typename T>
std::vector<T> each(const Words& words, const auto& parse) {
  std::vector<T> values;
  for (const std::string& word : words) values.push_back(static_cast<T>(parse(word)));
  return values;
}

// "float32[2,3]", "float32[2,3,4,4]/cl" for channels last, "-".
TensorDesc desc_of(const std::string& word) {
  if (word == "-") return {};
  if (word.ends_with("/cl")) {
    TensorDesc desc = desc_of(word.substr(0, word.size() - 3));
    desc.layout = Layout::kChannelsLast;
    return desc;
  }
  const auto dtype = dtype_from_name(word.substr(0, word.find('[')));
  if (!dtype || word.back() != ']') fail("not a tensor: " + word);
  return {*dtype, Shape(each<int64_t>(arguments_of(word, '['), integer))};
}

bool is_desc(const std::string& word) {
  return word == "-" || dtype_from_name(word.substr(0, word.find('['))).has_value();
}

ConstantPtr tensor_of(const std::string& text) {
  const TensorDesc desc = desc_of(text.substr(0, text.find('{')));
  Constant constant{desc, std::vector<std::byte>(desc.bytes())};
  from_doubles(each<double>(arguments_of(text, '{'), number), desc, constant.bytes.data());
  return std::make_shared<const Constant>(std::move(constant));
}

std::string unquoted(const std::string& text) { return text.substr(1, text.size() - 2); }

bool is_fraction(const std::string& text) { return text.find_first_of(".en") < text.size(); }

Attribute attribute_of(const std::string& text) {
  if (text.front() == '"') return unquoted(text);
  if (text.back() == '}') return tensor_of(text);
  if (text.front() != '[') {
    return is_fraction(text) ? Attribute(static_cast<float>(number(text))) : integer(text);
  }
  const Words words = arguments_of(text, '[');
  if (!words.empty() && words[0].front() == '"') return each<std::string>(words, unquoted);
  if (std::ranges::any_of(words, is_fraction)) return each<float>(words, number);
  return each<int64_t>(words, integer);
}

// --- fills ---

// A function on one element, with the number in parentheses.
struct ElementFunction {
  const char* name;
  double (*of)(double v, double a);
};
constexpr ElementFunction kElementFunctions[] = {
    {"scaled", [](double v, double a) { return v * a; }},
    {"shifted", [](double v, double a) { return v + a; }},
    {"magnitude", [](double v, double a) { return std::abs(v) + a; }},
    {"below", [](double v, double a) { return -std::abs(v) - a; }},
    {"away", [](double v, double a) { return v < 0 ? v - a : v + a; }},
    {"sign", [](double v, double a) { return v < 0 ? -a : a; }},
    {"square", [](double v, double a) { return v * v + a; }},
    {"tanh", [](double v, double a) { return a * std::tanh(v); }},
    {"whole", [](double v, double a) { return a + std::floor(std::abs(v)); }},
    {"chances", [](double v, double) { return v < 0   ? 0.25
                                              : v > 1 ? 1
                                                      : 0.75; }}};

// A tap inside x for each output: one that MaxPool may have chosen.
void put_winners(const Attributes& attributes, Numbers& values) {
  const kernels::ops::Window window = kernels::ops::known_window(
      attributes, Shape(attributes.ints("x_shape")), attributes.ints("kernel_shape"));
  std::vector<std::vector<int64_t>> inside(static_cast<size_t>(window.out_size()));
  kernels::ops::for_each_tap(window, [&](int64_t out, int64_t tap, int64_t) {
    inside[static_cast<size_t>(out)].push_back(tap);
  });
  for (size_t i = 0; i < values.size(); ++i) {
    const std::vector<int64_t>& taps = inside[i % inside.size()];
    values[i] = static_cast<double>(taps[i * 7 % taps.size()]);
  }
}

// Attention's outputs for AttentionGrad, which has attention's operands as operands 1 to 5: Y, in
// the order of y_perm, or the statistics.
Numbers forward_output(size_t output, const Attributes& attributes, std::vector<RefTensor> inputs) {
  const Registry registry = make_registry();
  const OpDef& op = registry.get("ofsdp.AttentionWithStatistics");
  inputs = {inputs.begin() + 1, inputs.begin() + 6};
  std::vector<TensorDesc> descs;
  for (const RefTensor& input : inputs) descs.push_back(input.desc);
  const std::vector<TensorDesc> outputs = *op.infer({attributes, descs, {}, {true, true}});
  RefTensor made = op.reference({attributes, inputs, outputs, 0, {}})[output];
  const std::vector<int64_t> perm = attributes.ints("y_perm");
  if (output != 0 || perm.empty()) return made.values;
  const OpDef& transpose = registry.get("Transpose");
  const Attributes axes{{"perm", perm}};
  const std::vector<TensorDesc> y = *transpose.infer({axes, {made.desc}, {}, {true}});
  return transpose.reference({axes, {made}, y, 0, {}})[0].values;
}

// A case's values, input by input.
struct Fill {
  std::vector<std::pair<size_t, std::string>> changes;  // input, text after "="
  Attributes attributes;
  std::vector<RefTensor> inputs;  // the inputs before, if `forward` reads them

  void add(size_t input, const std::string& text, const std::vector<TensorDesc>& descs) {
    changes.emplace_back(input, text);
    if (!inputs.empty() || !text.starts_with("forward")) return;
    for (const TensorDesc& desc : descs) inputs.push_back({desc, {}});
  }

  void operator()(size_t input, Numbers& values) {
    for (const auto& [which, text] : changes) {
      if (which == input) change(text, values);
    }
    if (inputs.empty()) return;
    const TensorDesc& desc = inputs[input].desc;
    std::vector<std::byte> bytes(desc.bytes());
    from_doubles(values, desc, bytes.data());
    inputs[input].values = to_doubles(desc, bytes.data());
  }

  void change(const std::string& text, Numbers& values) const {
    if (text.front() == '{') {
      const Numbers numbers = each<double>(arguments_of(text, '{'), number);
      for (size_t i = 0; i < values.size(); ++i) values[i] = numbers[i % numbers.size()];
      return;
    }
    const std::string name = text.substr(0, text.find('('));
    const Numbers given = each<double>(arguments_of(text, '('), number);
    const auto function = std::ranges::find(kElementFunctions, name, &ElementFunction::name);
    if (function != std::end(kElementFunctions)) {
      for (double& v : values) v = function->of(v, given.empty() ? 0 : given[0]);
    } else if (name == "zeros") {  // at these places, as far as they exist
      for (const double at : given) {
        if (at < static_cast<double>(values.size())) values[static_cast<size_t>(at)] = 0;
      }
    } else if (name == "winners") {
      put_winners(attributes, values);
    } else if (name == "forward") {
      values = forward_output(static_cast<size_t>(given[0]), attributes, inputs);
    } else {
      fail("no such fill: " + text);
    }
  }
};

// --- rows ---

SampleCase sample_of(const Words& words) {
  SampleCase made{.name = words[0]};
  Fill fill;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t at = word.find_first_of(":=");
    const std::string value = at < word.size() ? word.substr(at + 1) : "";
    if (is_desc(word)) {
      made.inputs.push_back(desc_of(word));
    } else if (value.empty()) {
      fail("neither a tensor nor name=value: " + word);
    } else if (word[at] == '=' && word[0] == '#') {
      fill.add(static_cast<size_t>(integer(word.substr(1, at - 1))), value, made.inputs);
    } else if (word[at] == '=') {
      made.attributes.set(word.substr(0, at), attribute_of(value));
    } else if (word.starts_with("suffix:")) {
      made.name += value;
    } else if (word.starts_with("known:")) {
      made.constant_inputs = each<size_t>(split(value, ','), integer);
    } else if (word.starts_with("outputs:")) {
      made.num_outputs = static_cast<size_t>(integer(value));
    } else if (word == "gradient:no") {
      made.check_grad = false;
    } else if (word.starts_with("tolerance:")) {
      made.tolerance = number(value);
    } else {
      fail("unknown word: " + word);
    }
  }
  if (!fill.changes.empty()) {
    fill.attributes = made.attributes;
    made.fill = fill;
  }
  return made;
}

using Rows = std::map<std::string, std::vector<Words>>;

void read_rows(const std::filesystem::path& path, Rows& rows) {
  std::ifstream file(path);
  Words names;
  std::string line;
  for (int count = 1; std::getline(file, line); ++count) {
    const Words words = split(line, ' ');
    if (words.empty() || line[0] == '#') continue;
    if (line[0] != ' ') {
      names = words;
    } else if (words[0] != "use") {
      for (const std::string& name : names) rows[name].push_back(words);
    } else if (words.size() < 2 || !rows.contains(words[1])) {
      fail(format_text("{}:{}: no such list", path.filename().string(), count));
    } else {
      for (Words row : std::vector<Words>(rows[words[1]])) {
        row.insert(row.end(), words.begin() + 2, words.end());
        for (const std::string& name : names) rows[name].push_back(row);
      }
    }
  }
}

const Rows& all_rows() {
  static const Rows rows = [] {
    const std::filesystem::path folder = OFSDP_SOURCE_DIR "/tests/ops/samples";
    Rows made;
    read_rows(folder / "lists.txt", made);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename() != "lists.txt") read_rows(entry.path(), made);
    }
    return made;
  }();
  return rows;
}

}  // namespace

std::vector<SampleCase> samples_of(const OpDef& op) {
  std::vector<SampleCase> samples;
  const auto found = all_rows().find(op.full_name());
  if (found == all_rows().end()) return samples;
  for (const Words& row : found->second) {
    try {
      samples.push_back(sample_of(row));
    } catch (const std::exception& error) {
      fail(format_text("tests/ops/samples: {} {}: {}", op.full_name(), row[0], error.what()));
    }
  }
  return samples;
}

}  // namespace ofsdp::testing
