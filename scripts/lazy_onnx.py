#!/usr/bin/env python3
"""Changes the sources of ONNX so that an operator's schema is made when it is asked for.

    scripts/lazy_onnx.py FOLDER   the unpacked sources, changed in place

ONNX makes the schemas of all versions of all operators, some seven hundred, when a process asks for the first: a third of the
instructions of a rank that trains MNIST for one step, for the twenty schemas that a model uses. Here the registry keeps the
function that makes each, and calls it once. The version converter, which asks for nothing but names and versions, gets
those; its constructor of a thousand lines is compiled once, not by whoever includes its header. A text that is not found
where it is expected is an error: another version of ONNX needs another look.
"""
import pathlib
import re
import sys


class Source:
    def __init__(self, path):
        self.path = path
        self.text = path.read_text()

    def replace(self, old, new, times=1):
        found = self.text.count(old)
        if found != times:
            sys.exit(f"{self.path}: expected {times} times {old!r}, found {found}")
        self.text = self.text.replace(old, new)

    def insert_before(self, line, new):
        self.replace(line, new + line)

    def exchange(self, first, after, new):
        """Puts `new` where the text from `first` on was, up to `after`, and returns that."""
        begin = self.text.find(first)
        end = self.text.find(after, begin)
        if begin < 0 or end < 0:
            sys.exit(f"{self.path}: expected {first!r} and then {after!r}")
        old = self.text[begin:end]
        self.text = self.text[:begin] + new + self.text[end:]
        return old

    def write(self):
        self.path.write_text(self.text)


# The domain of an operator by its name, for each header of operator sets.
DOMAINS = {
    "": lambda name: "ONNX_DOMAIN",
    "_ml": lambda name: "AI_ONNX_ML_DOMAIN",
    "_training": lambda name: "AI_ONNX_TRAINING_DOMAIN",
    "_preview": lambda name: "AI_ONNX_PREVIEW_DOMAIN" if name == "FlexAttention" else "AI_ONNX_PREVIEW_TRAINING_DOMAIN",
}


def change_operator_set(source, domain_of):
    """Gives the visitor of a set the name, domain, version and function, not the schema."""
    source.text = source.text.replace("const std::function<void(OpSchema&&)>& fn", "const OpSchemaVisitor& fn")
    source.text = source.text.replace("const std::function<void(OpSchema&&)>& /* fn */", "const OpSchemaVisitor&")
    call = re.compile(r"fn\(GetOpSchema<((?:ONNX|ONNX_PREVIEW)_OPERATOR_SET_SCHEMA_CLASS_NAME\((?:\w+, )?(\d+), (\w+)\))>\(\)\);")
    source.text = call.sub(lambda m: f'fn("{m[3]}", {domain_of(m[3])}, {m[2]}, &GetOpSchema<{m[1]}>);', source.text)
    if "fn(GetOpSchema" in source.text or "OpSchema&&" in source.text:
        sys.exit(f"{source.path}: expected every schema in a known form, found another")


def change_schema_header(source):
    source.replace("#include <iostream>\n", "#include <iostream>\n#include <limits>\n")
    source.insert_before("class ISchemaRegistry {", """using OpSchemaMaker = OpSchema (*)();
using OpSchemaVisitor = std::function<void(const char* name, const char* domain, int version, OpSchemaMaker make)>;

""")
    # Both look-ups make what they are about to find; the lock is recursive since a schema may ask for others.
    source.replace("""  static const OpSchema* Schema(const std::string& key, const std::string& domain = ONNX_DOMAIN) {
    auto& m = map();
""", """  static const OpSchema* Schema(const std::string& key, const std::string& domain = ONNX_DOMAIN) {
    const std::lock_guard<std::recursive_mutex> lock(Mutex());
    auto& m = map(key, std::numeric_limits<int>::max(), domain);
""")
    source.replace("""  Schema(const std::string& key, const int maxInclusiveVersion, const std::string& domain = ONNX_DOMAIN) {
    auto& m = map();
""", """  Schema(const std::string& key, const int maxInclusiveVersion, const std::string& domain = ONNX_DOMAIN) {
    const std::lock_guard<std::recursive_mutex> lock(Mutex());
    auto& m = map(key, maxInclusiveVersion, domain);
""")
    source.replace("""  ONNX_API static OpName_Domain_Version_Schema_Map& map();
""", """  ONNX_API static OpName_Domain_Version_Schema_Map& map();
  ONNX_API static OpName_Domain_Version_Schema_Map&
  map(const std::string& name, int most_version, const std::string& domain);
  static void AddMakers();
""")
    source.replace("""  ONNX_API static void SetLoadedSchemaVersion(int target_version) {
""", """  ONNX_API static void AddMaker(const char* name, const char* domain, int version, OpSchemaMaker make);
  // Calls `visit` for each schema that can be made.
  ONNX_API static void ForEachMaker(const OpSchemaVisitor& visit);
  ONNX_API static std::recursive_mutex& Mutex();
  ONNX_API static void SetLoadedSchemaVersion(int target_version) {
""")
    source.replace("""  T::ForEachSchema([opset_version_to_load, fail_duplicate_schema](OpSchema&& schema) {
    RegisterSchema(std::move(schema), opset_version_to_load, fail_duplicate_schema);
  });
""", """  T::ForEachSchema([&](const char* name, const char* domain, int version, OpSchemaMaker make) {
    if (opset_version_to_load == 0) {
      OpSchemaRegistry::AddMaker(name, domain, version, make);
    } else {
      RegisterSchema(make(), opset_version_to_load, fail_duplicate_schema);
    }
  });
""")


def change_schema_source(source):
    # Freeing the map at the end of a process would only make that end later.
    source.replace("  static OpName_Domain_Version_Schema_Map map;\n",
                   "  static auto& map = *new OpName_Domain_Version_Schema_Map;\n")
    source.exchange("OpName_Domain_Version_Schema_Map& OpSchemaRegistry::map() {\n", "size_t ReplaceAll(", """namespace {

struct Maker {
  const char* domain;
  int version;
  OpSchemaMaker make;
  bool made = false;
};

std::unordered_map<std::string_view, std::vector<Maker>>& Makers() {
  static auto& makers = *new std::unordered_map<std::string_view, std::vector<Maker>>;
  return makers;
}

void Make(Maker& maker) {
  if (!std::exchange(maker.made, true)) {
    RegisterSchema(maker.make());
  }
}

} // namespace

std::recursive_mutex& OpSchemaRegistry::Mutex() {
  static auto& mutex = *new std::recursive_mutex;
  return mutex;
}

void OpSchemaRegistry::AddMaker(const char* name, const char* domain, int version, OpSchemaMaker make) {
  Makers()[name].push_back(Maker{domain, version, make});
}

OpName_Domain_Version_Schema_Map& OpSchemaRegistry::map() {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  AddMakers();
  for (auto& [name, makers] : Makers()) {
    for (Maker& maker : makers) {
      Make(maker);
    }
  }
  return GetMapWithoutEnsuringRegistration();
}

OpName_Domain_Version_Schema_Map&
OpSchemaRegistry::map(const std::string& name, int most_version, const std::string& domain) {
  AddMakers();
  Maker* newest = nullptr;
  if (const auto it = Makers().find(name); it != Makers().end()) {
    for (Maker& maker : it->second) {
      if (maker.version <= most_version && domain == maker.domain &&
          (newest == nullptr || newest->version < maker.version)) {
        newest = &maker;
      }
    }
  }
  if (newest != nullptr) {
    Make(*newest);
  }
  return GetMapWithoutEnsuringRegistration();
}

void OpSchemaRegistry::ForEachMaker(const OpSchemaVisitor& visit) {
  const std::lock_guard<std::recursive_mutex> lock(Mutex());
  AddMakers();
  for (const auto& [name, makers] : Makers()) {
    for (const Maker& maker : makers) {
      visit(name.data(), maker.domain, maker.version, maker.make);
    }
  }
}

void OpSchemaRegistry::AddMakers() {
  static const bool added [[maybe_unused]] = [] {
    RegisterOnnxOperatorSetSchema();
#ifdef ONNX_ML
    RegisterOnnxMLOperatorSetSchema();
#endif
    RegisterOnnxTrainingOperatorSetSchema();
    RegisterOnnxPreviewOperatorSetSchema();
    return true;
  }();
}

""")


def change_converter(source, definitions):
    """Moves the constructor, which makes every adapter, out of the header: whoever includes that compiled it too."""
    source.replace("""    const std::vector<OpSchema> all_opschemas = OpSchemaRegistry::get_all_schemas_with_history();

    for (const OpSchema& schema : all_opschemas) {
      all_schemas[schema.Name()][schema.domain()][schema.since_version()] = &schema;
    }
""", """    OpSchemaRegistry::ForEachMaker([this](const char* name, const char* domain, int version, OpSchemaMaker) {
      all_schemas[name][domain][version] = nullptr; // its keys alone are asked for
    });
""")
    name = "DefaultVersionConverter"
    body = source.exchange(f"  {name}() {{\n", "\n  ModelProto convert_version(", f"  {name}();\n")
    definitions.insert_before("ModelProto ConvertVersion(", body.replace(f"  {name}()", f"{name}::{name}()", 1) + "\n")


def main():
    defs = pathlib.Path(sys.argv[1]) / "onnx" / "defs"
    converter = defs.parent / "version_converter"
    names = [defs / "schema.h", defs / "schema.cc", converter / "convert.h", converter / "convert.cc"]
    schema_header, schema_source, converter_header, converter_source = sources = [Source(path) for path in names]
    change_schema_header(schema_header)
    change_schema_source(schema_source)
    change_converter(converter_header, converter_source)
    for kind, domain_of in DOMAINS.items():
        sources.append(Source(defs / f"operator_sets{kind}.h"))
        change_operator_set(sources[-1], domain_of)
    for source in sources:
        source.write()


if __name__ == "__main__":
    main()
