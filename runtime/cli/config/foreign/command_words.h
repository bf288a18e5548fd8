// Words of torchrun, `accelerate launch`, `deepspeed` and Transformers' Trainer on our command
// line, so that such a line starts here with the model in the script's place. '_' and '-' are one.
//
// Three kinds, as with their files: a word that one of our flags means (an alias, or the value of a
// key of Accelerate); one without effect here, all of which stand in one warning; one that asks for
// something else, which is refused.
//
// Ownership: values; views of constants. Threads: one. Errors: kInput naming the word.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/cli/options/option_reader.h"

namespace ofsdp::cli {

enum class ForeignLauncher { kNone, kTorchrun, kAccelerate, kDeepSpeed };

// Takes `torchrun`, `accelerate launch`, `accelerate`, `deepspeed` or `python -m MODULE` of one of
// them off the front.
ForeignLauncher take_launcher(std::vector<std::string>& arguments);

struct CommandWord {
  enum class Kind { kValue, kBare, kOptional };
  Kind kind = Kind::kValue;
  std::string flag = {};   // ours, of which it is another name; empty: none
  std::string value = {};  // of a bare word: what it sets our flag to
};

// `word` as it stands, with its dashes. Nothing for one that none of them has.
std::optional<CommandWord> find_command_word(std::string_view word);
// Whether `next` is the value of an optional word: `--fsdp full_shard`, `--deepspeed ds.json`.
bool takes_next(std::string_view word, const std::string& next);

struct SaidWord {
  std::string word;  // as it stands
  std::string text;  // "on" of a bare one
};

using ReadWholeFile = std::function<Status(const std::string&, Source, OptionReader&)>;

// Reads those that are no other name of a flag of ours. Files that they name count as --config;
// `read_whole` reads one that turns out to be a whole file of Accelerate.
Status read_command_words(const std::vector<SaidWord>& words, OptionReader& reader,
                          const ReadWholeFile& read_whole);

// The file that `accelerate config` writes unless told otherwise.
std::string accelerate_default_file();

}  // namespace ofsdp::cli
