// Edits to a model before training: adapters, a new head, untied copies; and strangers' adapter
// files.
#include "importer/edit/model_edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "importer/file/tensor_file.h"
#include "importer/write/model_output.h"
#include "tests/support/namespaces.h"
#include "tests/support/small_model.h"

namespace ofsdp {
namespace model_edits_test {

using namespace onnx_bytes;  // NOLINT: the words of this test
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

struct Edited {
  Folder folder;
  std::string path;
  Result<EditedModel> model = Status{};

  Edited(const SmallModel& small, const ModelEdits& edits) {
    path = folder.write("model.onnx", small.bytes());
    auto file = OnnxFile::open(path);
    if (file.ok()) model = edit_model(*std::move(file), edits);
  }
  // The base, as a run writes it, opened again.
  OnnxFile written() const {
    const std::string to = folder / "out.onnx";
    auto output = ModelOutput::begin(*model->base, to);
    EXPECT_TRUE(output.ok() && output->finish().ok() && output->commit().ok());
    auto file = OnnxFile::open(to);
    EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message());
    return *std::move(file);
  }
};

const Initializer* find(const OnnxFile& file, const std::string& name) {
  for (const Initializer& weight : file.initializers()) {
    if (weight.name == name) return &weight;
  }
  return nullptr;
}

std::vector<float> values_of(const OnnxFile& file, const std::string& name) {
  const Initializer* weight = find(file, name);
  if (weight == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(weight->shape.numel()));
  EXPECT_TRUE(file.read(*weight, 0, values).ok());
  return values;
}

ModelEdits with_adapters(uint64_t seed = 0) {
  ModelEdits edits;
  edits.adapters.patterns = {"all"};
  edits.adapters.rank = 2;
  edits.adapters.alpha = 6;
  edits.adapters.seed = seed;
  return edits;
}

TEST(ModelEditsTest, AdapterIsDrawnAsPeftDrawsIt) {
  const Edited edited(linear_model(), with_adapters());
  ASSERT_TRUE(edited.model.ok());
  const OnnxFile& file = edited.model->file;
  const std::vector<float> a = values_of(file, "w.lora_A.weight");
  ASSERT_EQ(a.size(), 2u * 4);
  float largest = 0;
  for (const float x : a) largest = std::max(largest, std::fabs(x));
  EXPECT_LT(largest, 0.5f);  // 1 / sqrt(in)
  EXPECT_GT(largest, 0.2f);
  EXPECT_THAT(values_of(file, "w.lora_B.weight"), Each(0.0f));
  EXPECT_EQ(values_of(file, "w"), linear_weights());
  float third = 0;  // an element drawn alone is the same
  ASSERT_TRUE(file.read(*find(file, "w.lora_A.weight"), 3, {&third, 1}).ok());
  EXPECT_EQ(third, a[3]);
  const Edited other(linear_model(), with_adapters(1));
  EXPECT_NE(values_of(other.model->file, "w.lora_A.weight"), a);
}

// W is stored in x out here, so the transpose of B A is added.
TEST(ModelEditsTest, MergesInTheOrientationOfTheWeight) {
  const Edited edited(linear_model(), with_adapters());
  ASSERT_TRUE(edited.model.ok());
  const std::vector<float> a = count_up(8, 1), b = count_up(6, -2);
  std::vector<float> merged = linear_weights();
  const Adapter& adapter = edited.model->adapters.at(0);
  adapter.add_to(0, std::span(merged).first(5), a, b);
  adapter.add_to(5, std::span(merged).subspan(5), a, b);
  for (size_t in = 0; in < 4; ++in) {
    for (size_t out = 0; out < 3; ++out) {
      const float sum = b[out * 2] * a[in] + b[out * 2 + 1] * a[4 + in];
      EXPECT_EQ(merged[in * 3 + out], linear_weights()[in * 3 + out] + 3 * sum);
    }
  }
}

// The name of an adapter comes from its weight and its product.
TEST(ModelEditsTest, NamesAreThoseOfPeft) {
  const std::pair<std::pair<const char*, const char*>, const char*> rows[] = {
      {{"h.0.fc.weight", "node_1"}, "h.0.fc"},
      {{"onnx::MatMul_23", "/layer.0/up/MatMul"}, "layer.0.up"},
      {{"val_7", "/head/MatMul"}, "head"},
      {{"val_7", "node_MatMul_3"}, "val_7"},
      {{"fc.MatMul.weight_Q4", "m"}, "fc.MatMul"},
      {{"fc.weight_Q4G32", "m"}, "fc"},
      {{"fc.weight_quantized", "m"}, "fc"},
      {{"fc.qweight", "m"}, "fc"},
      {{"weight_Queue", "m"}, "weight_Queue"},
  };
  for (const auto& [names, expected] : rows) {
    SmallModel small = linear_model();
    small.nodes[0] = node("MatMul", {"x", names.first}, {"products"}, names.second);
    small.initializers[0] = tensor(names.first, kFloat, {4, 3}, raw(linear_weights()));
    const Edited edited(small, with_adapters());
    ASSERT_TRUE(edited.model.ok()) << names.first;
    EXPECT_EQ(edited.model->adapters.at(0).name, expected);
  }
}

TEST(ModelEditsTest, ATableThatIsAlsoGatheredCannotBeMerged) {
  SmallModel small = linear_model();
  small.inputs.push_back(declared("ids", {-1}, kInt64));
  small.nodes.push_back(node("Gather", {"w", "ids"}, {"rows"}, "look_up"));
  const Edited edited(small, with_adapters());
  ASSERT_TRUE(edited.model.ok());
  EXPECT_THAT(edited.model->adapters.at(0).unmergeable, HasSubstr("look_up"));
}

TEST(ModelEditsTest, EveryReaderGetsItsCopy) {
  SmallModel small = linear_model();
  small.nodes = {node("Identity", {"b"}, {"b_later"}, "copy"),
                 node("MatMul", {"x", "w"}, {"p"}, "/blocks.0/MatMul"),
                 node("Add", {"p", "b"}, {"q"}, "/blocks.0/Add"),
                 node("Add", {"q", "b_later"}, {"logits"}, "/blocks.1/Add")};
  small.initializers[1] = tensor("b", kFloat, {3}, raw<float>({1, 1, 1}));
  ModelEdits edits;
  edits.untie = {"auto"};
  const Edited edited(small, edits);
  ASSERT_TRUE(edited.model.ok());
  const OnnxFile written = edited.written();
  EXPECT_THAT(values_of(written, "b"), ElementsAre(1, 1, 1));
  EXPECT_THAT(values_of(written, "b.1"), ElementsAre(1, 1, 1));
  EXPECT_EQ(values_of(written, "w"), linear_weights());
  EXPECT_EQ(find(written, "b.2"), nullptr);
  auto file = OnnxFile::open(edited.path);
  EXPECT_THAT(*merged_copies_warning(*file), HasSubstr("'b' (2 readers)"));
  EXPECT_EQ(*merged_copies_warning(written), "");
}

// Several products read one weight's packed bytes (MatMulNBits).
TEST(ModelEditsTest, SharedIntegersAreNoMergedCopies) {
  SmallModel small = linear_model();
  const auto product = [](const char* x, const char* y, const char* name) {
    return node("MatMulNBits", {x, "bytes", "scales"}, {y}, name, "com.microsoft");
  };
  small.nodes = {product("x", "p", "/blocks.0/MatMul"), product("p", "logits", "/blocks.1/MatMul")};
  small.initializers = {tensor("bytes", kUint8, {4, 1, 16}, message(9, std::string(64, 'a'))),
                        tensor("scales", kFloat, {4}, raw<float>({1, 2, 3, 4}))};
  const Edited edited(small, {});
  auto file = OnnxFile::open(edited.path);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*merged_copies_warning(*file), "");
}

enum : int { kInt8 = 3, kInt4 = 22 };

// x dequantized(q) + b, with integers as bytes or as a list of numbers.
SmallModel integer_model(bool list, int type) {
  SmallModel small = linear_model();
  const std::vector<int8_t> q{5, -8, 7, 1, -2, 3, 4, -4, 6, -7, 0, 2}, z{1, -1, 2};
  const auto integers = [&](const std::string& name, const std::vector<int64_t>& dims,
                            const std::vector<int8_t>& values) {
    std::vector<int8_t> bytes = values;
    if (type == kInt4) {
      bytes.clear();
      for (size_t i = 0; i < values.size(); i += 2) {
        const int high = i + 1 < values.size() ? values[i + 1] : 0;
        bytes.push_back(static_cast<int8_t>((values[i] & 15) | high << 4));
      }
    }
    std::vector<uint64_t> words;
    for (const int8_t byte : bytes) words.push_back(static_cast<uint64_t>(int64_t{byte}));
    return tensor(name, type, dims, list ? packed_numbers(5, words) : raw(bytes));
  };
  small.nodes.insert(small.nodes.begin(),
                     node("DequantizeLinear", {"q", "s", "z"}, {"w"}, "dequantize"));
  small.initializers = {integers("q", {4, 3}, q), integers("z", {3}, z),
                        tensor("s", kFloat, {3}, raw<float>({.5f, .25f, .125f})),
                        tensor("b", kFloat, {3}, raw<float>({0.5f, 0.f, -0.5f})),
                        tensor("exact", kDouble, {1}, raw<double>({0.1}))};
  small.opset = 21;
  return small;
}

TEST(ModelEditsTest, IntegersKeepTypeValuesAndZeroPoints) {
  for (const int type : {int{kInt8}, int{kInt4}}) {
    for (const bool list : {false, true}) {
      SCOPED_TRACE(format_text("type {}, {}", type, list ? "a list" : "bytes"));
      ModelEdits edits;
      edits.added = AddedHead{5, "kinds"};
      edits.untie = {"*"};
      const Edited edited(integer_model(list, type), edits);
      ASSERT_TRUE(edited.model.ok()) << edited.model.error().message();
      const auto original = OnnxFile::open(edited.path);
      ASSERT_TRUE(original.ok());
      const std::vector<float> expected = values_of(*original, "q");
      EXPECT_EQ(expected[0], 2);  // (5 - 1) / 2
      const OnnxFile written = edited.written();
      for (const OnnxFile* file : {&edited.model->file, &written}) {
        ASSERT_NE(find(*file, "q"), nullptr);
        ASSERT_NE(find(*file, "q")->quantization, nullptr);
        EXPECT_EQ(find(*file, "q")->quantization->onnx_type, type);
        EXPECT_EQ(values_of(*file, "q"), expected);
        EXPECT_THAT(*file->zero_points("z", type, 3), ElementsAre(1, -1, 2));
      }
      double exact = 0;
      const Initializer* wide = find(written, "exact");
      ASSERT_TRUE(written.read_raw(*wide, 0, std::as_writable_bytes(std::span(&exact, 1))).ok());
      EXPECT_EQ(exact, 0.1);
    }
  }
}

// Two readers of packed bytes, and of the scales that make integers a weight.
TEST(ModelEditsTest, UntieCopiesIntegersAndNoScales) {
  SmallModel small = integer_model(false, kInt8);
  small.nodes.push_back(node("DequantizeLinear", {"q", "s", "z"}, {"w2"}, "again"));
  small.nodes.push_back(node("MatMul", {"x", "w2"}, {"second"}, "second"));
  ModelEdits edits;
  edits.untie = {"*"};
  const Edited edited(small, edits);
  ASSERT_TRUE(edited.model.ok()) << edited.model.error().message();
  const OnnxFile written = edited.written();
  EXPECT_EQ(values_of(written, "q.1"), values_of(written, "q"));
  ASSERT_NE(find(written, "q.1"), nullptr);
  ASSERT_NE(find(written, "q.1")->quantization, nullptr);
  EXPECT_EQ(find(written, "s.1"), nullptr);
  edits.untie = {"s"};
  const Edited refused(small, edits);
  ASSERT_FALSE(refused.model.ok());
  EXPECT_THAT(refused.model.error().message(), HasSubstr("found a scale or zero point of 'q'"));
}

TEST(ModelEditsTest, ANewHeadHasItsBiasAndItsShapes) {
  ModelEdits edits;
  edits.head = 5;
  const Edited edited(linear_model(), edits);
  ASSERT_TRUE(edited.model.ok());
  const OnnxFile written = edited.written();
  EXPECT_EQ(find(written, "w")->shape, (Shape{4, 5}));
  EXPECT_EQ(find(written, "b")->shape, (Shape{5}));
  for (const char* name : {"w", "b"}) {
    EXPECT_EQ(values_of(written, name), values_of(edited.model->file, name));
    EXPECT_THAT(values_of(written, name),
                Each(testing::AllOf(testing::Gt(-.5f), testing::Lt(.5f))));
  }
}

std::string first_axis() { return message(5, message(1, "axis") + number(3, 0) + number(20, 2)); }

// Brings back the axis that a reduction has dropped.
enum class Back { kNothing, kUnsqueeze, kReshape };

// linear_model() with a softmax in pieces.
SmallModel softmax_in_pieces(Back back) {
  SmallModel small = linear_model();
  const auto reduction = [&](const char* op, const char* x, const std::string& y) {
    constexpr uint64_t kInt = 2;
    const uint64_t keeps = back == Back::kNothing ? 1 : 0;
    const std::string keepdims = message(1, "keepdims") + number(20, kInt) + number(3, keeps);
    const std::string to = keeps != 0 ? y : y + "_flat";
    small.nodes.push_back(node(op, {x, "last"}, {to}, to) + message(5, keepdims));
    if (back == Back::kUnsqueeze) small.nodes.push_back(node("Unsqueeze", {to, "last"}, {y}, y));
    if (back != Back::kReshape) return;
    small.nodes.push_back(node("Reshape", {to, "sizes"}, {y + "_column"}, y + "_column"));
    small.nodes.push_back(node("Expand", {y + "_column", "ones"}, {y}, y));
  };
  if (back == Back::kReshape) {  // as JAX writes it: sizes of int32, and a Cast
    const std::string to_int64 = message(5, message(1, "to") + number(3, kInt64) + number(20, 2));
    small.nodes.push_back(node("Concat", {"rest", "one"}, {"joined"}, "join") + first_axis());
    small.nodes.push_back(node("Cast", {"joined"}, {"sizes"}, "cast") + to_int64);
    constexpr int kInt32 = 6;
    small.initializers.push_back(tensor("rest", kInt32, {1}, raw<int32_t>({-1})));
    small.initializers.push_back(tensor("one", kInt32, {1}, raw<int32_t>({1})));
    small.initializers.push_back(tensor("ones", kInt64, {2}, raw<int64_t>({1, 1})));
  }
  reduction("ReduceMax", "logits", "most");
  small.nodes.push_back(node("Sub", {"logits", "most"}, {"d"}, "d"));
  small.nodes.push_back(node("Exp", {"d"}, {"e"}, "e"));
  reduction("ReduceSum", "e", "sum");
  small.nodes.push_back(node("Div", {"e", "sum"}, {"p"}, "div"));
  small.initializers.push_back(tensor("last", kInt64, {1}, raw<int64_t>({1})));
  small.outputs = {declared("p", {-1, 3})};
  return small;
}

TEST(ModelEditsTest, ANewHeadReachesThroughASoftmaxInPieces) {
  ModelEdits edits;
  edits.head = 5;
  for (const Back back : {Back::kNothing, Back::kUnsqueeze, Back::kReshape}) {
    const Edited edited(softmax_in_pieces(back), edits);
    ASSERT_TRUE(edited.model.ok()) << edited.model.error().message();
    const OnnxFile written = edited.written();
    EXPECT_EQ(find(written, "w")->shape, (Shape{4, 5}));
    EXPECT_EQ(find(written, "b")->shape, (Shape{5}));
  }
}

// The sizes for a Reshape after the head, as a tensor or at the end of a Concat.
TEST(ModelEditsTest, AReshapeAfterTheHeadGetsTheNewCount) {
  ModelEdits edits;
  edits.head = 5;
  for (const bool joined : {false, true}) {
    SmallModel small = linear_model();
    if (joined) {
      small.nodes.push_back(node("Concat", {"rest", "count"}, {"sizes"}, "join") + first_axis());
      small.initializers.push_back(tensor("rest", kInt64, {2}, raw<int64_t>({-1, 2})));
      small.initializers.push_back(tensor("count", kInt64, {1}, raw<int64_t>({3})));
    } else {
      small.initializers.push_back(tensor("sizes", kInt64, {3}, raw<int64_t>({-1, 2, 3})));
    }
    small.nodes.push_back(node("Reshape", {"logits", "sizes"}, {"pairs"}, "shape"));
    small.outputs = {declared("pairs", {-1, 2, 3})};
    const Edited edited(small, edits);
    ASSERT_TRUE(edited.model.ok()) << edited.model.error().message();
    const OnnxFile written = edited.written();
    EXPECT_EQ(find(written, "w")->shape, (Shape{4, 5}));
  }
}

TEST(ModelEditsTest, AReductionOverOtherAxesReadsTheHead) {
  SmallModel small = softmax_in_pieces(Back::kNothing);
  small.initializers.back() = tensor("last", kInt64, {1}, raw<int64_t>({0}));
  ModelEdits edits;
  edits.head = 5;
  const Edited edited(small, edits);
  ASSERT_FALSE(edited.model.ok());
  EXPECT_THAT(edited.model.error().message(), HasSubstr("node 'most' (ReduceMax)"));
}

TEST(ModelEditsTest, AHeadWhoseShapeOthersReadIsRefused) {
  SmallModel small = linear_model();
  small.nodes.push_back(node("Shape", {"logits"}, {"size"}, "asks"));
  ModelEdits edits;
  edits.head = 5;
  const Edited edited(small, edits);
  ASSERT_FALSE(edited.model.ok());
  EXPECT_THAT(edited.model.error().message(), HasSubstr("node 'asks' (Shape)"));
}

TEST(ModelEditsTest, AnAddedHeadIsALinearOnThePrediction) {
  ModelEdits edits;
  edits.added = AddedHead{5, "kinds"};
  for (const char* prediction : {"", "products"}) {  // an output, and a value within
    edits.prediction = prediction;
    const Edited edited(linear_model(), edits);
    ASSERT_TRUE(edited.model.ok()) << edited.model.error().message();
    EXPECT_THAT(edited.model->added, ElementsAre("kinds.weight", "kinds.bias"));
    const OnnxFile written = edited.written();
    EXPECT_EQ(find(written, "kinds.weight")->shape, (Shape{3, 5}));
    EXPECT_EQ(find(written, "kinds.bias")->shape, (Shape{5}));
    EXPECT_EQ(values_of(written, "w"), linear_weights());
    for (const char* name : {"kinds.weight", "kinds.bias"}) {
      EXPECT_THAT(values_of(written, name),
                  Each(testing::AllOf(testing::Gt(-.578f), testing::Lt(.578f))));
    }
  }
  edits.added->name = "logits";
  const Edited taken(linear_model(), edits);
  ASSERT_FALSE(taken.model.ok());
  EXPECT_THAT(taken.model.error().message(), HasSubstr("has a value 'logits' already"));
}

TEST(ModelEditsTest, EditsSurviveAsText) {
  ModelEdits edits = with_adapters(7);
  edits.seed = 7;
  edits.untie = {"a*", "auto"};
  edits.head = 9;
  edits.added = AddedHead{3, "kinds"};
  edits.adapters.dropout = 0.25;
  edits.adapters.from = "first.safetensors";
  EXPECT_EQ(text_of(*edits_from(text_of(edits))), text_of(edits));
  EXPECT_EQ(text_of(ModelEdits()), "");
  for (const char* bad : {"{", "{}", "[]", R"({"untie":[],"prediction":1,"seed":0})"}) {
    EXPECT_FALSE(edits_from(bad).ok()) << bad;
  }
}

std::string safetensors(const std::string& header, size_t data = 8) {
  std::string text(8, '\0');
  for (size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return text + header + std::string(data, '\0');
}

TEST(ModelEditsTest, AdapterFilesAreNotTrusted) {
  const Folder folder;
  const auto opens = [&](const std::string& bytes) {
    return open_safetensors(folder.write("a.safetensors", bytes));
  };
  const auto with = [](const char* type, const char* shape, const char* offsets) {
    return safetensors(format_text(R"({{"t":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", type,
                                   shape, offsets));
  };
  const auto good = opens(with("\"F32\"", "[2]", "[0,8]"));
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->find("t")->shape, (Shape{2}));
  const std::string bad[] = {
      "",
      "1234567",
      safetensors("{", 0),
      safetensors("[]"),
      safetensors("{\"t\":1}"),
      std::string(8, '\xff') + "{}",
      with("\"F32\"", "[2]", "[0,9]"),
      with("\"F32\"", "[2]", "[8,0]"),
      with("\"F32\"", "[3]", "[0,8]"),
      with("\"F32\"", "[-2]", "[0,8]"),
      with("\"F32\"", "[2.0]", "[0,8]"),
      with("\"F32\"", "[4611686018427387904,4611686018427387904,2]", "[0,8]"),
      with("\"F32\"", "[2]", "[18446744073709551608,8]"),
      with("\"F33\"", "[2]", "[0,8]"),
      with("7", "[2]", "[0,8]"),
      with("\"F32\"", "2", "[0,8]"),
      with("\"F32\"", "[2]", "[0]"),
      safetensors(std::string(100000, '[')),
  };
  for (const std::string& bytes : bad) {
    const auto opened = opens(bytes);
    ASSERT_FALSE(opened.ok()) << bytes.substr(0, 100);
    EXPECT_EQ(opened.error().kind(), ErrorKind::kInput);
    EXPECT_THAT(opened.error().message(), HasSubstr("a.safetensors"));
  }
}

// Returns the bytes of an adapter file with these tensors; each holds 1, 2, 3, ...
std::string ort_adapter(std::vector<Initializer> tensors) {
  const auto layout = lay_out_ort_adapter(std::move(tensors));
  EXPECT_TRUE(layout.ok());
  std::string bytes;
  const auto put = [&](int64_t at, const std::string& text) {
    bytes.resize(std::max(bytes.size(), static_cast<size_t>(at) + text.size()), '\0');
    bytes.replace(static_cast<size_t>(at), text.size(), text);
  };
  for (const auto& text : layout->texts) put(text.offset, text.bytes);
  for (const Initializer& place : layout->places) {
    const std::vector<float> values = count_up(static_cast<size_t>(place.shape.numel()), 1);
    put(place.offset,
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }
  return bytes;
}

// Whatever byte is spoiled or missing, the file is refused or all tensors lie within it.
TEST(ModelEditsTest, AdapterFilesOfOnnxRuntimeAreNotTrusted) {
  const Folder folder;
  const std::string good = ort_adapter({{"a", DType::kFloat32, Shape{2, 3}},
                                        {"b.lora_A.weight", DType::kFloat32, Shape{5, 1, 1}},
                                        {"c", DType::kFloat32, Shape{}}});
  const auto open = [&](const std::string& bytes) {
    return open_ort_adapter(folder.write("a.onnx_adapter", bytes));
  };
  const auto file = open(good);
  ASSERT_TRUE(file.ok()) << file.error().message();
  ASSERT_EQ(file->tensors().size(), 3u);
  for (const FileTensor& tensor : file->tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.shape.numel()));
    ASSERT_TRUE(file->read(tensor, 0, values).ok());
    EXPECT_EQ(values, count_up(values.size(), 1)) << tensor.name;
  }
  EXPECT_EQ(file->find("b.lora_A.weight")->shape, (Shape{5, 1, 1}));
  size_t refused = 0;
  const auto expect_safe = [&](const std::string& bytes) {
    const auto opened = open(bytes);
    if (!opened.ok()) {
      ++refused;
      EXPECT_EQ(opened.error().kind(), ErrorKind::kInput);
      EXPECT_THAT(opened.error().message(), HasSubstr("a.onnx_adapter"));
      return;
    }
    for (const FileTensor& tensor : opened->tensors()) {
      const int64_t end =
          tensor.offset + tensor.shape.numel() * static_cast<int64_t>(dtype_size(tensor.dtype));
      EXPECT_TRUE(tensor.offset >= 8 && end <= static_cast<int64_t>(bytes.size())) << tensor.name;
    }
  };
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ flip);
      expect_safe(bytes);
    }
    expect_safe(good.substr(0, at));
  }
  EXPECT_GT(refused, good.size()) << "every prefix, and more";
}

TEST(ModelEditsTest, AdapterFilesOfOnnxRuntimeEndBelowTwoGiB) {
  const std::vector<Initializer> large(9, {"a", DType::kFloat32, Shape{1 << 13, 1 << 13}});
  const auto layout = lay_out_ort_adapter(large);
  ASSERT_FALSE(layout.ok());
  EXPECT_THAT(layout.error().message(), HasSubstr("2147483647"));
}

}  // namespace model_edits_test
}  // namespace ofsdp
