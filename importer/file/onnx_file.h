// An .onnx file opened for training. `open` reads only the skeleton; each rank later reads the
// weights in its shards.
//
// The file and the data files stay open, so replacing them by name (writing the trained file to the
// same path) changes nothing here. If one is cut short in place, `read` fails.
//
// Const members are thread-safe. Errors: kInput from `open` (one line: path, tensor, expected and
// found); kFault from `read`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "importer/file/wire.h"
#include "kernels/base/posix_file.h"
#include "kernels/base/status.h"
#include "kernels/core/dtype.h"
#include "kernels/core/quantization.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {

// The ONNX library's newest opset. A model is converted to it before it becomes a Graph.
inline constexpr int kOpset = 28;
inline constexpr const char* kMicrosoft = "com.microsoft";  // ONNX Runtime's own operators

// How a quantized weight's integers become values: (q - zero_point) * scale. Names are
// initializers or Constant nodes; `onnx_type` is the integers' TensorProto.DataType.
struct Quantization {
  std::string scale;
  std::string zero_point;  // empty: 0
  // A bias may have no scale in the file, or the product of these two.
  std::vector<std::string> factors = {};
  int64_t axis = 1;
  int64_t block_size = 0;
  // DynamicQuantizeLSTM. Its scales have rank 1, one for each index of axis 0, or rank 2, one for
  // each pair of indices of axes 0 and 2. axis and block_size follow from the rank, once the file
  // is open.
  bool per_gate = false;
  int onnx_type = 0;
  bool rounds = true;  // forward rounds values to integers; false for a bias in int32
  // Cast, Sub and Mul compute it: the scale's shape tells axis and block size, and the zero point
  // may be whole numbers of any type.
  bool multiplied = false;

  // Filled in from the names, once the file is open.
  ScaleMap map = {};
  std::vector<float> scales = {};
  std::vector<int64_t> zero_points = {};  // empty: 0

  int bits() const;
  int64_t lowest() const;
  int64_t greatest() const;
};

// The values of one initializer that an edit of the model has made, such as a new head.
class ValueSource {
 public:
  virtual ~ValueSource() = default;
  virtual Status read(int64_t first_element, std::span<float> dst) const = 0;
  // Reads an initializer's bytes in the stored type. REQUIRES: has_raw.
  virtual bool has_raw() const { return false; }
  virtual Status read_raw(int64_t first_byte, std::span<std::byte> dst) const;
  // Reads elements as stored. REQUIRES: they are integers of a file.
  virtual Status read_stored_integers(int64_t first_element, std::span<int64_t> dst) const;
};

// A weight in an ONNX file and where the elements are, so a rank reads or writes only its own
// shard. Weights are floating-point tensors, and integers with a Quantization.
//
//   kDense    element i at offset + i * dtype_size       raw_data, packed float_data, external data
//   kStrided  element i at offset + i * stride           unpacked float_data: a tag before each
//   kList     the whole TensorProto's offset and bytes; elements have no fixed position (16-bit
//             floats as varints in int32_data, data in several pieces), so reading walks over it; a
//             trained file gets raw_data instead
//
// If `own_type` is set, nodes read the raw data in the file (weights in few bits, with scales and
// zero points); such an initializer is dense.
//
// An initializer or constant in an edited model (importer/edit/model_editor.h) may have `values`
// that replace the bytes; a file written from it gets raw_data.
struct Initializer {
  enum class Encoding : uint8_t { kDense, kStrided, kList };

  std::string name;
  DType dtype = DType::kUndefined;
  Shape shape;
  int file = 0;  // 0: the .onnx file itself; i: data file i-1
  int64_t offset = 0;
  int64_t bytes = 0;
  Encoding encoding = Encoding::kDense;
  int64_t stride = 0;  // bytes from element to element; 0 for kList
  // 4 for int4 and uint4: two elements in a byte, the first in the lower half; dtype has 8 bits.
  int bits = 0;
  bool own_type = false;
  std::shared_ptr<const Quantization> quantization = nullptr;  // integers that are a weight
  std::shared_ptr<const ValueSource> values = {};              // replace the file's bytes

  int64_t raw_bytes() const {  // raw data
    const int64_t numel = shape.numel();
    return bits == 4 ? (numel + 1) / 2 : numel * static_cast<int64_t>(dtype_size(dtype));
  }
  // Returns the raw data as a tensor; two elements in one byte count as one byte.
  TensorDesc raw_desc() const {
    return bits == 4 ? TensorDesc{DType::kUInt8, Shape{raw_bytes()}} : TensorDesc{dtype, shape};
  }
};

// One walk over an .onnx file's bytes collects everything except weights:
//
//   skeleton           the ModelProto without the bytes of floating-point initializers in the main
//                      graph. Each becomes a graph input with the static type after the others,
//                      unless an input has the name already. Initializers with at most kSmallNumel
//                      elements stay: converters and shape inference read Dropout's ratio, Clip's
//                      bounds, Resize's scales. Other types stay too; external
//                      ones get raw_data. Everything else stays byte for byte, in order.
//   initializers       every floating-point initializer, small ones too, in file order;
//                      Constant nodes that are weights (below); and integer weights
//                      (quantized_uses) of any size, which become float inputs, or keep
//                      their type if nodes read their bytes
//   constants          other integer initializers, and Constant nodes' values: scales and
//                      zero points may be among them
//   algorithm_tensors  training_info's initializers; a rank reads and writes only the
//                      optimizer state for its shards
//   places             initializers that a copy of the file must change, since the copy has other
//                      data files or stores them in another encoding
//
// [Note: weights in Constant nodes] Some exporters write weights as Constant nodes (Paddle2ONNX,
// spox). A floating Constant of the main graph or of a branch with one axis or more and the data in
// the file counts as an initializer, named by its output, if an operator reads it as a weight and
// the file has no other floating weight. A Constant of one element counts if that operator is not
// elementwise. In other files such Constants are often numbers of a formula, so they count only if
// the caller names them. Weights in branches: branch_weights.h.
//
// Errors: kInput, starting with the path.

inline constexpr int64_t kSmallNumel = 16;

struct FieldPlace {   // a message's field, in the file
  int64_t begin = 0;  // of its tag
  int64_t body = 0;
  int64_t end = 0;
};

// An initializer in an algorithm graph. Floating-point ones are read like the model's; other types
// (the update count) are useful only as scalars.
struct AlgorithmTensor {
  int training_info = 0;  // index
  Initializer initializer;
  FieldPlace field;
  FieldPlace info;       // the TrainingInfoProto
  FieldPlace algorithm;  // the algorithm graph
};

struct DataFile {
  std::string location;  // as the model names it
  OpenFile file;
};

struct NumberedPlace {
  uint32_t number = 0;
  FieldPlace place;
};

struct TensorPlace {
  FieldPlace field;
  int data_file = -1;    // external: data file index
  int initializer = -1;  // kList: initializer index
  // A tensor inside of a node: the fields from the node to the tensor.
  std::vector<NumberedPlace> path = {};
};

// Sizes of inputs' axes, by input; -1: any.
using InputSizes = std::map<std::string, std::vector<int64_t>>;

struct OnnxContents {
  std::string skeleton;
  std::vector<Initializer> initializers;
  std::vector<Initializer> constants;
  std::vector<std::string> other_weights;  // Constant nodes that only a name would make weights
  std::vector<DataFile> data_files;
  FieldPlace graph;
  std::vector<TensorPlace> places;
  std::vector<AlgorithmTensor> algorithm_tensors;    // from training_info, in file order
  InputSizes input_sizes = {};                       // that the data give to free axes
  std::map<std::string, double> input_numbers = {};  // of inputs that are the same in each batch
};

// `bytes`: the whole file at `path`. External data are in the same folder. `weights`: names and
// globs of Constant nodes that count as initializers. `plain`: integers that are no weights.
Result<OnnxContents> walk_onnx(const std::string& path, std::span<const std::byte> bytes,
                               const std::vector<std::string>& weights = {},
                               const std::set<std::string>& plain = {});

// Finds a graph's integer weights: initializers that only dequantizing nodes read, all in the same
// way:
//
//   DequantizeLinear                      of ONNX or com.microsoft; int32 is a bias
//   QLinearConv, QLinearMatMul, QGemm,    weights, and int32 biases with the product of two
//   QLinearAdd, QLinearMul                scales
//   MatMulInteger, ConvInteger            weights, with the scale that the Mul after them applies
//   MatMulIntegerToFloat, DynamicQuantizeMatMul, DynamicQuantizeLSTM
//   Cast, Mul by the scale                of a product's weights or a table; a Sub of the zero
//                                         point may stand between
//
// Also finds operands that operators compute with as integers: MatMulNBits, GatherBlockQuantized.
//
// Works on a GraphProto's bytes, before parsing. Errors: kInput for a truncated graph.

struct QuantizedUses {
  // By initializer, with names, axis and blocks set.
  std::map<std::string, Quantization> weights;
  // Initializers, in any type, that only operators on few-bit weights read.
  std::set<std::string> own_type;
  // Values that an operator reads as weights, if only through views and casts, also in subgraphs.
  std::set<std::string> read_as_weights;
  std::set<std::string> operands;    // of these: read by an operator that is not elementwise
  std::vector<WireField> constants;  // NodeProtos
};

// `integers`: TensorProto.DataType of the graph's integer initializers, by name.
Result<QuantizedUses> quantized_uses(const WireField& graph,
                                     const std::map<std::string, int>& integers);

// Values of any initializer, to read in place of the file's: a checkpoint's, or drawn ones.
class InitialSource {
 public:
  virtual ~InitialSource() = default;
  virtual bool has(const Initializer& initializer) const = 0;
  virtual Status read(const Initializer& initializer, int64_t first_element,
                      std::span<float> dst) = 0;
};
std::string initial_key(const Initializer& initializer);  // identifies an initializer in the file

using NamedScales = std::map<std::string, std::vector<float>>;  // scales by initializer name

class OnnxFile {
 public:
  // `weights`: names and globs, [Note: weights in Constant nodes].
  static Result<OnnxFile> open(const std::string& path,
                               const std::vector<std::string>& weights = {});
  // Returns a model without weights that is in no file: a training_info's update. Messages name
  // `path`.
  static OnnxFile of_model(const std::string& path, std::string model);
  // Returns a model assembled elsewhere; `file` has the bytes except for the weights.
  static OnnxFile of_parts(OpenFile file, OnnxContents contents);

  const std::string& path() const { return file_.path; }
  const std::string& skeleton() const { return contents_.skeleton; }  // a serialized ModelProto
  const std::vector<Initializer>& initializers() const { return contents_.initializers; }

  // Reads elements first_element .. first_element + dst.size() - 1 in row-major order as float32,
  // dequantized if the weight is quantized. REQUIRES: they are inside the shape.
  Status read(const Initializer& initializer, int64_t first_element, std::span<float> dst) const;

  // Reads an initializer's raw bytes. REQUIRES: has_raw, which depends on the encoding; the bytes
  // are inside.
  bool has_raw(const Initializer& initializer) const;
  Status read_raw(const Initializer& initializer, int64_t first_byte,
                  std::span<std::byte> dst) const;
  // Reads elements as stored, in any encoding. REQUIRES: they are integers.
  Status read_stored_integers(const Initializer& initializer, int64_t first_element,
                              std::span<int64_t> dst) const;

  // --- quantization constants ---
  // Returns a main-graph initializer that is no quantized weight, or
  // a Constant node's value; null: there is none.
  const Initializer* find_constant(const std::string& name) const;
  Result<std::vector<int64_t>> integers(const Initializer& constant) const;
  // Return scales above 0, and zero points in a TensorProto.DataType. Errors: kInput, expected and
  // found.
  Result<std::vector<float>> scales(const std::string& name) const;
  Result<std::vector<int64_t>> zero_points(const std::string& name, int onnx_type,
                                           size_t count) const;
  // Multiplies a bias's factors, with scales from `changed` instead of the file's.
  Result<std::vector<float>> factor_product(const Quantization& q,
                                            const NamedScales& changed) const;

  // Returns, by weight index, the scales that `changed` alters; for an int32 bias the factors'
  // product.
  Result<std::map<int, std::vector<float>>> rescaled(const NamedScales& changed) const;

  // Lets `read` ask `source` first. From then on only one thread may read.
  void set_initial(std::shared_ptr<InitialSource> source) { initial_ = std::move(source); }
  bool one_thread_reads() const { return initial_ != nullptr; }
  bool has_initial(const Initializer& initializer) const {
    return initial_ != nullptr && initial_->has(initializer);
  }

  // Lets an import take free axes of inputs as fixed, and whole inputs as a number, which may
  // decide its control flow. The file and its hash stay, and the inputs stay inputs.
  void fix_inputs(InputSizes sizes, std::map<std::string, double> numbers) {
    contents_.input_sizes = std::move(sizes);
    contents_.input_numbers = std::move(numbers);
  }

  const OpenFile& file() const { return file_; }
  const OnnxContents& contents() const { return contents_; }

  // For a dialect with the training model's weights in another file.
  OnnxContents take_contents() { return std::move(contents_); }
  void put_contents(OnnxContents contents) { contents_ = std::move(contents); }

 private:
  const OpenFile& file_of(const Initializer& initializer) const;
  Result<Quantization> settled(const Initializer& weight, Quantization q) const;
  Result<Quantization> settled_product(const Initializer& weight, Quantization q) const;
  std::set<std::string> unsettled_products() const;
  Status resolve_quantizations();
  Status read_quantized(const OpenFile& file, const Initializer& weight, int64_t first,
                        std::span<float> dst) const;
  Status read_list(const Initializer& initializer, int64_t first_element,
                   std::span<float> dst) const;
  Status read_converted(const OpenFile& file, const Initializer& initializer, int64_t first_element,
                        std::span<float> dst) const;

  OpenFile file_;
  OnnxContents contents_;
  std::shared_ptr<InitialSource> initial_;
};

// Hashes everything in a model except weights and training: nodes, names, shapes, opsets, constants
// that are no floats. The input file and all trained copies have the same hash. 64-bit FNV-1a as 16
// hexadecimal digits: it tells files apart by accident, not by malice.
std::string graph_hash(const OnnxFile& file);

}  // namespace ofsdp::importer
