// Accepts words of torchrun, `accelerate launch`, `deepspeed` and Transformers' Trainer on our
// command line, so that such a command works here with the model in place of the script. '_' and
// '-' are equal.
//
// A word means one of our flags (an alias, or a key of Accelerate with a value), has no effect here
// (one warning lists all of these), or asks for something else and is refused. Errors: kInput with
// the word.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cli/options/option_reader.h"

namespace ofsdp::cli {

enum class ForeignLauncher { kNone, kTorchrun, kAccelerate, kDeepSpeed };

// Removes `torchrun`, `accelerate launch`, `accelerate`, `deepspeed` or `python -m MODULE` from the
// front.
ForeignLauncher take_launcher(std::vector<std::string>& arguments);

struct CommandWord {
  enum class Kind { kValue, kBare, kOptional };
  Kind kind = Kind::kValue;
  std::string flag = {};   // our flag with this meaning; empty: none
  std::string value = {};  // the value that a bare word gives to our flag
};

// `word` as written, with dashes. Returns none if no launcher has it.
std::optional<CommandWord> find_command_word(std::string_view word);
// Returns true if `next` is the value of an optional word: `--fsdp full_shard`, `--deepspeed
// ds.json`.
bool takes_next(std::string_view word, const std::string& next);

struct SaidWord {
  std::string word;  // as written
  std::string text;  // "on" for a bare word
};

using ReadWholeFile = std::function<Status(const std::string&, Source, OptionReader&)>;

// Reads the words that are not aliases of our flags. Files that they name count as --config;
// `read_whole` reads one that is a whole file of Accelerate.
Status read_command_words(const std::vector<SaidWord>& words, OptionReader& reader,
                          const ReadWholeFile& read_whole);

// Returns the default output file of `accelerate config`.
std::string accelerate_default_file();

}  // namespace ofsdp::cli
