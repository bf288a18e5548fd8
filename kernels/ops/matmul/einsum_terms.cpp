// Parses Einsum equations, for kernels on every device. The CUDA library compiles this file too, so
// it must not need the CPU kernels.
#include <algorithm>
#include <map>

#include "kernels/cpu/broadcast.h"
#include "kernels/ops/matmul/einsum.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr char kEllipsis = '.';

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts(1);
  for (char c : list) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

// Removes spaces; turns "..." into one character.
std::string compact(const std::string& equation) {
  std::string made;
  for (size_t i = 0; i < equation.size(); ++i) {
    if (equation[i] == ' ') continue;
    if (equation.compare(i, 3, "...") == 0) {
      made += kEllipsis;
      i += 2;
    } else {
      made += equation[i];
    }
  }
  return made;
}

Status check_letters(const std::string& term) {
  for (char c : term) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 || c == kEllipsis) continue;
    return input_error("attribute 'equation': expected letters and '...', found '{}'", c);
  }
  if (std::ranges::count(term, kEllipsis) > 1) {
    return input_error("attribute 'equation': expected one '...' in a term, found more");
  }
  return ok_status();
}

class Parser {
 public:
  Result<EinsumTerms> run(const std::string& equation, const std::vector<Shape>& shapes) {
    const std::string text = compact(equation);
    const size_t arrow = text.find("->");
    const auto terms = split(text.substr(0, arrow));
    if (terms.size() != shapes.size()) {
      return input_error("attribute 'equation' '{}': expected {} terms, found {}", equation,
                         shapes.size(), terms.size());
    }
    for (size_t i = 0; i < terms.size(); ++i) {
      OFSDP_RETURN_IF_ERROR(check_letters(terms[i]));
      ellipsis_ = std::max(ellipsis_, shapes[i].rank() - letters_of(terms[i]));
      dots_ = dots_ || terms[i].find(kEllipsis) != std::string::npos;
    }
    made_.sizes.assign(static_cast<size_t>(dots_ ? ellipsis_ : 0), 1);
    for (size_t i = 0; i < terms.size(); ++i) OFSDP_RETURN_IF_ERROR(add_input(terms[i], shapes[i]));
    if (arrow == std::string::npos) {
      add_implicit_output();
    } else {
      OFSDP_RETURN_IF_ERROR(add_output(text.substr(arrow + 2)));
    }
    return made_;
  }

 private:
  static int letters_of(const std::string& term) {
    return static_cast<int>(term.size()) - static_cast<int>(std::ranges::count(term, kEllipsis));
  }

  Status add_input(const std::string& term, const Shape& shape) {
    const int hidden = shape.rank() - letters_of(term);
    const bool dots = term.find(kEllipsis) != std::string::npos;
    if (hidden < 0 || (hidden > 0 && !dots)) {
      return input_error("term '{}': expected {} axes, found {}", term, letters_of(term),
                         shape.text());
    }
    Labels labels;
    for (char c : term) {
      if (c == kEllipsis) {
        for (int i = 0; i < hidden; ++i) labels.push_back(ellipsis_ - hidden + i);
      } else {
        if (!letters_.contains(c)) {
          letters_[c] = made_.labels();
          made_.sizes.push_back(1);
        }
        uses_[c] += 1;
        labels.push_back(letters_[c]);
      }
    }
    for (int axis = 0; axis < shape.rank(); ++axis) {
      int64_t& size = made_.sizes[static_cast<size_t>(labels[static_cast<size_t>(axis)])];
      if (shape[axis] != 1 && size != 1 && size != shape[axis]) {
        return input_error("term '{}': axis {} of {} has size {}, expected {}", term, axis,
                           shape.text(), shape[axis], size);
      }
      if (shape[axis] != 1) size = shape[axis];
    }
    made_.inputs.push_back(std::move(labels));
    return ok_status();
  }

  Status add_output(const std::string& term) {
    OFSDP_RETURN_IF_ERROR(check_letters(term));
    for (char c : term) {
      if (c == kEllipsis) {
        for (int i = 0; i < (dots_ ? ellipsis_ : 0); ++i) made_.output.push_back(i);
      } else if (!letters_.contains(c) ||
                 std::ranges::find(made_.output, letters_[c]) != made_.output.end()) {
        return input_error("output term '{}': expected each letter of an input once, found '{}'",
                           term, c);
      } else {
        made_.output.push_back(letters_[c]);
      }
    }
    return ok_status();
  }

  // The ellipsis, then letters that occur once, in alphabetical order.
  void add_implicit_output() {
    for (int i = 0; i < (dots_ ? ellipsis_ : 0); ++i) made_.output.push_back(i);
    for (const auto& [letter, uses] : uses_) {
      if (uses == 1) made_.output.push_back(letters_[letter]);
    }
  }

  EinsumTerms made_;
  std::map<char, int> letters_, uses_;
  int ellipsis_ = 0;  // axes of the longest ellipsis
  bool dots_ = false;
};

Labels joined_labels(std::initializer_list<Labels> lists) {
  Labels all;
  for (const Labels& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

void lay_out(const EinsumTerms& terms, EinsumForm& form) {
  form.transpose_a = terms.inputs[0] == joined_labels({form.batch, form.inner, form.rows});
  form.transpose_b = terms.inputs[1] == joined_labels({form.batch, form.columns, form.inner});
  form.a = form.transpose_a ? joined_labels({form.batch, form.inner, form.rows})
                            : joined_labels({form.batch, form.rows, form.inner});
  form.b = form.transpose_b ? joined_labels({form.batch, form.columns, form.inner})
                            : joined_labels({form.batch, form.inner, form.columns});
  form.y = joined_labels({form.batch, form.rows, form.columns});
}

}  // namespace

std::string EinsumTerms::equation() const {
  static constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  if (sizes.size() > kLetters.size()) return "";
  std::string text;
  auto put = [&](const Labels& list) {
    for (int label : list) text += kLetters[static_cast<size_t>(label)];
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i > 0) text += ',';
    put(inputs[i]);
  }
  text += "->";
  put(output);
  return text;
}

bool EinsumTerms::broadcasts(const std::vector<Shape>& shapes) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (int axis = 0; axis < shapes[i].rank(); ++axis) {
      const int label = inputs[i][static_cast<size_t>(axis)];
      if (shapes[i][axis] != sizes[static_cast<size_t>(label)]) return true;
    }
  }
  return false;
}

bool EinsumTerms::repeats(size_t input) const {
  Labels sorted = inputs[input];
  std::ranges::sort(sorted);
  return std::ranges::adjacent_find(sorted) != sorted.end();
}

Result<EinsumTerms> parse_einsum(const std::string& equation, const std::vector<Shape>& shapes) {
  return Parser().run(equation, shapes);
}

std::vector<int64_t> label_strides(const Labels& labels, const Shape& shape, int count) {
  std::vector<int64_t> strides(static_cast<size_t>(count), 0);
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    const auto label = static_cast<size_t>(labels[static_cast<size_t>(axis)]);
    if (shape[axis] != 1) strides[label] += stride;
    stride *= shape[axis];
  }
  return strides;
}

EinsumLoop::EinsumLoop(const EinsumTerms& terms, const std::vector<Shape>& shapes) {
  order = terms.output;
  outer = order.size();
  for (int label = 0; label < terms.labels(); ++label) {
    if (std::ranges::find(terms.output, label) == terms.output.end()) order.push_back(label);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    sizes.push_back(terms.sizes[static_cast<size_t>(order[i])]);
    (i < outer ? outputs : summed) *= sizes.back();
  }
  for (size_t k = 0; k < shapes.size(); ++k) {
    const auto of_labels = label_strides(terms.inputs[k], shapes[k], terms.labels());
    std::vector<int64_t> ordered;
    for (int label : order) ordered.push_back(of_labels[static_cast<size_t>(label)]);
    strides.push_back(std::move(ordered));
  }
}

EinsumForm einsum_form(const EinsumTerms& terms, const std::vector<Shape>& shapes) {
  EinsumForm form;
  if (shapes.size() != 2 || terms.broadcasts(shapes) || terms.repeats(0) || terms.repeats(1)) {
    return form;
  }
  for (int label : terms.output) {
    const bool left = has_label(terms.inputs[0], label), right = has_label(terms.inputs[1], label);
    (left && right ? form.batch : left ? form.rows : form.columns).push_back(label);
  }
  form.possible = true;
  for (size_t k = 0; k < 2; ++k) {
    for (int label : terms.inputs[k]) {
      if (has_label(terms.output, label)) continue;
      if (!has_label(terms.inputs[1 - k], label)) form.possible = false;  // summed alone
      if (k == 0) form.inner.push_back(label);
    }
  }
  lay_out(terms, form);
  return form;
}

Shape label_shape(const EinsumTerms& terms, const Labels& labels) {
  std::vector<int64_t> axes;
  for (int label : labels) axes.push_back(terms.sizes[static_cast<size_t>(label)]);
  return Shape(axes);
}

}  // namespace ofsdp::kernels::ops
