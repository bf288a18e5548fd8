#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "kernels/base/status.h"
#include "plugins/check/check.h"

namespace ofsdp::plugins {
namespace {

constexpr const char* kCMake = R"(cmake_minimum_required(VERSION 3.16)
project(my_operators LANGUAGES CXX)
find_package(ofsdp_plugin 2 REQUIRED CONFIG)  # -DCMAKE_PREFIX_PATH=where onnx-fsdp is installed
add_library(my_operators MODULE my_operators.cpp)
target_link_libraries(my_operators PRIVATE ofsdp::plugin)
set_target_properties(my_operators PROPERTIES CXX_STANDARD 11 CXX_VISIBILITY_PRESET hidden)
)";

constexpr const char* kHead =
    R"(// Operators for fsdp-run --plugin libmy_operators.so. Write infer, forward and backward, then:
//   cmake -S . -B build -G Ninja -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build
//   fsdp-run check-plugin build/libmy_operators.so
#include <ofsdp_plugin.h>

namespace {

const uint32_t kTypes = OFSDP_TYPE(OFSDP_FLOAT32);
const int64_t kSampleShape[] = {2, 3};
const ofsdp_tensor kSampleTensor = {
    sizeof(ofsdp_tensor), OFSDP_FLOAT32, 2, kSampleShape, nullptr, nullptr};
)";

// The file's names become C++: in literals, and in comments.
bool is_identifier(std::string_view name) {
  const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::ranges::all_of(name, fits);
}

Status check_names(const SkeletonOperator& op) {
  const auto in_domain = [](char c) {
    return c == '.' || c == '-' || is_identifier({&c, 1}) || (c >= '0' && c <= '9');
  };
  OFSDP_REJECT_IF(!is_identifier(op.name) || !std::ranges::all_of(op.domain, in_domain),
                  "--make-plugin: operator '{}' of domain '{}': expected names of letters, digits "
                  "and _, found others",
                  op.name, op.domain);
  for (const auto& [name, value] : op.attributes.all()) {
    OFSDP_REJECT_IF(!is_identifier(name),
                    "--make-plugin: operator '{}': expected attributes with names of letters, "
                    "digits and _, found '{}'",
                    op.name, name);
  }
  return {};
}

std::string literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const bool plain = c >= 0x20 && c < 0x7f && c != '"' && c != '\\' && c != '?';
    out += plain ? std::string(1, c) : format_text("\\{:03o}", static_cast<unsigned char>(c));
  }
  return out + "\"";
}

std::string type_text(const Attribute& value) {
  constexpr const char* kTypes[] = {"OFSDP_INT", "OFSDP_FLOAT", "OFSDP_STRING", "OFSDP_INTS"};
  return value.index() < 4 ? kTypes[value.index()] : "OFSDP_FLOATS";
}

std::string default_text(const Attribute& value) {
  std::string i = "0", f = "0", s = "nullptr";
  if (const auto* given = std::get_if<int64_t>(&value)) i = std::to_string(*given);
  if (const auto* given = std::get_if<float>(&value)) f = format_text("{:#}f", *given);
  if (const auto* given = std::get_if<std::string>(&value)) s = literal(*given);
  return format_text("{}, {}, {}, nullptr, nullptr, 0", i, f, s);
}

std::string operands_text(const char* what, const char* letter, size_t count, const char* flags) {
  std::string text;
  std::string list;
  for (size_t i = 0; i < count; ++i) {
    text += format_text(
        "const ofsdp_operand k{}{} = {{sizeof(ofsdp_operand), \"{}{}\", kTypes, {}}};\n", what, i,
        letter, i, flags);
    list += format_text("{}&k{}{}", i == 0 ? "" : ", ", what, i);
  }
  return text + format_text("const ofsdp_operand* const k{}s[] = {{{}}};\n", what,
                            list.empty() ? "nullptr" : list);
}

std::string attributes_text(const Attributes& attributes) {
  std::string text, list;
  size_t i = 0;
  for (const auto& [name, value] : attributes.all()) {
    text += format_text(
        "const ofsdp_attribute kAttribute{} = {{sizeof(ofsdp_attribute), \"{}\", {}, 0, {}}};\n", i,
        name, type_text(value), default_text(value));
    list += format_text("{}&kAttribute{}", i == 0 ? "" : ", ", i);
    ++i;
  }
  return text + format_text("const ofsdp_attribute* const kAttributes[] = {{{}}};\n",
                            list.empty() ? "nullptr" : list);
}

std::string sample_text(size_t inputs) {
  std::string list;
  for (size_t i = 0; i < inputs; ++i) list += i == 0 ? "&kSampleTensor" : ", &kSampleTensor";
  return format_text(
      "const ofsdp_tensor* const kSampleInputs[] = {{{}}};\n"
      "const ofsdp_sample kSample = {{sizeof(ofsdp_sample), \"small\", nullptr, 0, kSampleInputs, "
      "{}, 1, 0}};\n"
      "const ofsdp_sample* const kSamples[] = {{&kSample}};\n",
      list.empty() ? "nullptr" : list, inputs);
}

std::string operator_text(const SkeletonOperator& op, size_t index) {
  const std::string full = op.domain.empty() ? op.name : op.domain + "." + op.name;
  std::string text =
      format_text("\n// {}: write here what it computes, and its derivative.\n", full);
  text += format_text("namespace operator{} {{\n\n", index);
  text += "// The type and shape of each output.\nint32_t infer(const ofsdp_node* node) {\n";
  for (size_t i = 0; i < op.outputs; ++i) {
    text +=
        op.inputs > 0
            ? format_text("  ofsdp_like_input(node, {}, 0);\n", i)
            : format_text("  node->host->set_output(node, {}, OFSDP_FLOAT32, 0, nullptr);\n", i);
  }
  text += format_text(R"(  return OFSDP_OK;
}}

int32_t forward(const ofsdp_node* node) {{
  return ofsdp_fail(node, "{}: forward is not written yet");
}}

// Reads grad_outputs and the operands that are OFSDP_SAVED, writes those grad_inputs that are not
// OFSDP_ABSENT.
int32_t backward(const ofsdp_node* node) {{
  return ofsdp_fail(node, "{}: backward is not written yet");
}}

)",
                      full, full);
  text += operands_text("Input", "x", op.inputs, "OFSDP_SAVED");
  text += operands_text("Output", "y", op.outputs, "0");
  text += attributes_text(op.attributes) + sample_text(op.inputs);
  text += format_text(
      "const ofsdp_operator kOperator = {{sizeof(ofsdp_operator), \"{}\", \"{}\", 1, 0, kInputs, "
      "{}, "
      "kOutputs, {},\n    kAttributes, {}, infer, nullptr, forward, backward, nullptr, kSamples, "
      "1, "
      "nullptr, nullptr}};\n\n}}  // namespace operator{}\n",
      op.domain, op.name, op.inputs, op.outputs, op.attributes.all().size(), index);
  return text;
}

std::string source_text(const std::vector<SkeletonOperator>& operators) {
  std::string text = kHead, list;
  for (size_t i = 0; i < operators.size(); ++i) {
    text += operator_text(operators[i], i);
    list += format_text("{}&operator{}::kOperator", i == 0 ? "" : ", ", i);
  }
  return text + format_text(R"(
const ofsdp_operator* const kOperators[] = {{{}}};
const ofsdp_plugin kPlugin = {{
    sizeof(ofsdp_plugin), OFSDP_PLUGIN_VERSION, "my_operators", "0.1", kOperators, {}, nullptr, 0}};

}}  // namespace

const ofsdp_plugin* ofsdp_plugin_entry(const ofsdp_host*) {{ return &kPlugin; }}
)",
                            list, operators.size());
}

Status write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file.good()) return {};
  return fault("--make-plugin: {} cannot be written", path.string());
}

}  // namespace

Status write_skeleton(const std::string& folder, const std::vector<SkeletonOperator>& operators) {
  for (const SkeletonOperator& op : operators) OFSDP_RETURN_IF_ERROR(check_names(op));
  std::error_code error;
  if (std::filesystem::exists(folder, error) && !std::filesystem::is_empty(folder, error)) {
    return input_error("--make-plugin {}: expected a new or empty folder", folder);
  }
  std::filesystem::create_directories(folder, error);
  if (error) return fault("--make-plugin {}: {}", folder, error.message());
  const std::filesystem::path base(folder);
  OFSDP_RETURN_IF_ERROR(write_file(base / "CMakeLists.txt", kCMake));
  return write_file(base / "my_operators.cpp", source_text(operators));
}

}  // namespace ofsdp::plugins
