// An .onnx file opened for training. `open` reads only the skeleton; ranks read weights later, so
// no rank reads more than its shards.
//
// The file and its data files stay open, so replacing them by name (writing the trained file to the
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
#include "kernels/core/scale_map.h"
#include "kernels/core/shape.h"
#include "kernels/core/tensor.h"

namespace ofsdp::importer {

// A weight of an ONNX file and the position of its elements, so a rank reads or writes only the
// bytes of its own shard. Weights are floating-point tensors, and integers with a Quantization.
//
//   kDense    element i at offset + i * dtype_size       raw_data, packed float_data, external data
//   kStrided  element i at offset + i * stride           unpacked float_data: a tag before each
//   kList     offset and bytes of the whole TensorProto; elements have no fixed position (16-bit
//             floats as varints in int32_data, data in several pieces), so reading walks over it; a
//             trained file gets raw_data instead
//
// If `own_type` is set, nodes read the raw data of the file (weights of few bits, with their scales
// and zero points); such an initializer is dense.
//
// An initializer of an edited model (importer/edit/model_editor.h) may have `values` that replace
// the bytes; a file written from it gets raw_data.

// How integers of a quantized weight become values: (q - zero_point) * scale. Names are those of
// initializers; `onnx_type` is the TensorProto.DataType of the integers.
struct Quantization {
  std::string scale;
  std::string zero_point;  // empty: 0
  // A bias may have no scale of its own in the file, or one that is the product of these two.
  std::vector<std::string> factors = {};
  int64_t axis = 1;
  int64_t block_size = 0;
  int onnx_type = 0;
  bool rounds = true;  // forward rounds values to integers; false for a bias in int32

  // Filled in from the names, once the file is open.
  ScaleMap map = {};
  std::vector<float> scales = {};
  std::vector<int64_t> zero_points = {};  // empty: 0

  int bits() const;
  int64_t lowest() const;
  int64_t greatest() const;
};

// Values that are no bytes of the model file.
class ValueSource {
 public:
  virtual ~ValueSource() = default;
  virtual Status read(int64_t first_element, std::span<float> dst) const = 0;
  // Reads bytes of an initializer in its own type. REQUIRES: has_raw.
  virtual bool has_raw() const { return false; }
  virtual Status read_raw(int64_t first_byte, std::span<std::byte> dst) const;
};

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
  std::shared_ptr<const ValueSource> values = {};              // replace the bytes of the file

  int64_t raw_bytes() const {  // of the raw data
    const int64_t numel = shape.numel();
    return bits == 4 ? (numel + 1) / 2 : numel * static_cast<int64_t>(dtype_size(dtype));
  }
  // Returns the raw data as a tensor; two elements in one byte count as one byte.
  TensorDesc raw_desc() const {
    return bits == 4 ? TensorDesc{DType::kUInt8, Shape{raw_bytes()}} : TensorDesc{dtype, shape};
  }
};

// One walk over the bytes of an .onnx file collects everything except its weights:
//
//   skeleton           the ModelProto without the bytes of floating-point initializers of the main
//                      graph. Each becomes a graph input of its static type after the others,
//                      unless an input has its name already. Initializers of at most kSmallNumel
//                      elements stay: converters and shape inference read Dropout's ratio, Clip's
//                      bounds, Resize's scales. Initializers of other types stay too; external
//                      ones get raw_data. Everything else stays byte for byte, in order.
//   initializers       every floating-point initializer, small ones too, in the order of the file;
//                      and integers of any size that are a weight (quantized_uses), which become
//                      inputs of type float, or of their own type if nodes read their bytes
//   constants          other initializers of integers, and values of Constant nodes: scales and
//                      zero points may be among them
//   algorithm_tensors  initializers of training_info; a rank reads and writes only the optimizer
//                      state of its own shards
//   places             initializers that a copy with other data files or encodings changes
//
// Errors: kInput, starting with the path.

inline constexpr int64_t kSmallNumel = 16;

struct FieldPlace {   // of a message, in the file
  int64_t begin = 0;  // of its tag
  int64_t body = 0;
  int64_t end = 0;
};

// An initializer of an algorithm graph. Floating-point ones are read like those of the model; of
// others (the count of updates) only scalars are useful.
struct AlgorithmTensor {
  int training_info = 0;  // index
  Initializer initializer;
  FieldPlace field;
  FieldPlace info;       // the TrainingInfoProto
  FieldPlace algorithm;  // its graph
};

struct DataFile {
  std::string location;  // as the model names it
  OpenFile file;
};

struct TensorPlace {
  FieldPlace field;
  int data_file = -1;    // external: index of the data file
  int initializer = -1;  // kList: index of the initializer
};

struct OnnxContents {
  std::string skeleton;
  std::vector<Initializer> initializers;
  std::vector<Initializer> constants;
  std::vector<DataFile> data_files;
  FieldPlace graph;
  std::vector<TensorPlace> places;
  std::vector<AlgorithmTensor> algorithm_tensors;  // of the training_info, in the order of the file
};

// `bytes`: the whole file at `path`. External data are in the folder of `path`.
Result<OnnxContents> walk_onnx(const std::string& path, std::span<const std::byte> bytes);

// Finds the integer initializers of a graph that are weights, because only nodes that dequantize
// them read them, all in the same way:
//
//   DequantizeLinear                      of ONNX or com.microsoft; int32 is a bias
//   QLinearConv, QLinearMatMul, QGemm,    weights, and biases in int32 with the product of two
//   QLinearAdd, QLinearMul                scales
//   MatMulInteger, ConvInteger            weights, with the scale that the Mul after them applies
//   MatMulIntegerToFloat, DynamicQuantizeMatMul
//
// Also finds operands of operators that compute with integers directly: MatMulNBits,
// GatherBlockQuantized.
//
// Works on the bytes of a GraphProto, before parsing. Errors: kInput for a truncated graph.

struct QuantizedUses {
  // By initializer, with names, axis and blocks set.
  std::map<std::string, Quantization> weights;
  // Initializers of any type that only operators on weights of few bits read.
  std::set<std::string> own_type;
  std::vector<WireField> constants;  // NodeProtos of Constant nodes
};

// `integers`: names and TensorProto.DataType of the integer initializers of the graph.
Result<QuantizedUses> quantized_uses(const WireField& graph,
                                     const std::map<std::string, int>& integers);

// Values that replace the values of a file.
class InitialSource {
 public:
  virtual ~InitialSource() = default;
  virtual bool has(const Initializer& initializer) const = 0;
  virtual Status read(const Initializer& initializer, int64_t first_element,
                      std::span<float> dst) = 0;
};
std::string initial_key(const Initializer& initializer);  // identifies an initializer of the file

using NamedScales =
    std::map<std::string, std::vector<float>>;  // scales by the names of their initializers

class OnnxFile {
 public:
  static Result<OnnxFile> open(const std::string& path);
  // Returns a model without weights that is in no file: the update of a training_info. Messages
  // name `path`.
  static OnnxFile of_model(const std::string& path, std::string model);
  // Returns a model assembled elsewhere; `file` has the bytes except for the weights.
  static OnnxFile of_parts(OpenFile file, OnnxContents contents);

  const std::string& path() const { return file_.path; }
  const std::string& skeleton() const { return contents_.skeleton; }  // a serialized ModelProto
  const std::vector<Initializer>& initializers() const { return contents_.initializers; }

  // Reads elements first_element .. first_element + dst.size() - 1 in row-major order as float32,
  // dequantized if the weight is quantized. REQUIRES: they are inside of the shape.
  Status read(const Initializer& initializer, int64_t first_element, std::span<float> dst) const;

  // Reads raw bytes of an initializer. REQUIRES: has_raw, which depends on the encoding; the bytes
  // are inside.
  bool has_raw(const Initializer& initializer) const;
  Status read_raw(const Initializer& initializer, int64_t first_byte,
                  std::span<std::byte> dst) const;

  // --- constants of quantization ---
  // Returns an initializer of the main graph that is no quantized weight, or the value of a
  // Constant node; null: there is none.
  const Initializer* find_constant(const std::string& name) const;
  Result<std::vector<int64_t>> integers(const Initializer& constant) const;
  // Return scales above 0, and zero points of a TensorProto.DataType. Errors: kInput, expected and
  // found.
  Result<std::vector<float>> scales(const std::string& name) const;
  Result<std::vector<int64_t>> zero_points(const std::string& name, int onnx_type,
                                           size_t count) const;
  // Returns the product of the factors of a bias, with scales from `changed` instead of the file's.
  Result<std::vector<float>> factor_product(const Quantization& q,
                                            const NamedScales& changed) const;

  // Returns, by index, the scales of quantized weights that `changed` alters; for an int32 bias the
  // product of the factors.
  Result<std::map<int, std::vector<float>>> rescaled(const NamedScales& changed) const;

  // Lets `read` ask `source` first. From then on only one thread may read.
  void set_initial(std::shared_ptr<InitialSource> source) { initial_ = std::move(source); }
  bool one_thread_reads() const { return initial_ != nullptr; }
  bool has_initial(const Initializer& initializer) const {
    return initial_ != nullptr && initial_->has(initializer);
  }

  const OpenFile& file() const { return file_; }
  const OnnxContents& contents() const { return contents_; }

  // For a dialect that has the weights of its training model in another file.
  OnnxContents take_contents() { return std::move(contents_); }
  void put_contents(OnnxContents contents) { contents_ = std::move(contents); }

 private:
  const OpenFile& file_of(const Initializer& initializer) const;
  Result<Quantization> settled(const Initializer& weight, Quantization q) const;
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

// Returns a hash of everything that a model computes apart from its weights: nodes, names, shapes,
// opsets, constants that are no floats. The input file and all its trained copies have the same.
// 64 bits of FNV-1a as 16 hexadecimal digits: it tells files apart by accident, not by malice.
std::string graph_hash(const OnnxFile& file);

}  // namespace ofsdp::importer
