// relax(): the processor's hint that this thread waits in a loop. Threads: any. Errors: none.
#pragma once

namespace ofsdp::fsdp {

void relax();

}  // namespace ofsdp::fsdp
