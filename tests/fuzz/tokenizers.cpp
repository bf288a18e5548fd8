// A fuzz target: any text as a tokenizer.json. An accepted tokenizer encodes a text with many kinds
// of characters, or has no token for it. Corpus: tests/fixtures/tokenizers.
#include "runtime/data/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/namespaces.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ofsdp;
  constexpr std::string_view kText =
      " It's 12,345 words;\tfine\n ﬁne Ünïcode e\u0301 中文 ｶﾅ नमस्ते "
      "👍🏽 "
      "<s>[CLS] "
      "\u200b▁a\r\n";
  const auto tokenizer = Tokenizer::parse(fuzzing::text_of(data, size), "t.json");
  if (!tokenizer.ok()) {
    fuzzing::check_message(tokenizer.error().message());
    return 0;
  }
  Tokenizer::SeenWords seen;
  for (int twice = 0; twice < 2; ++twice) {
    std::vector<TokenId> ids;
    const Status status = (*tokenizer)->encode(kText, ids, seen);
    if (!status.ok()) fuzzing::check_message(status.message());
  }
  return 0;
}
