#include "tiering/cold_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/status_macros.h"
#include "tiering/cold_file.h"

namespace strata {
namespace {

constexpr int32_t kAttemptsMax = 3;

}  // namespace

using cold_format::Descriptor;
using cold_format::kSectorBytes;

void ColdStore::Operation::Begin(ColdStore* owner) {
  store = owner;
  result = Result::kOk;
  error = 0;
  attempts = 1;
  begun = std::chrono::steady_clock::now();
}

void ColdStore::Operation::Retry(Result why, int errno_value) {
  error = errno_value;
  if (why == Result::kIoError) {
    (write ? store->write_errors_ : store->read_errors_).fetch_add(1, std::memory_order_relaxed);
  }
  if (attempts >= kAttemptsMax) {
    Deliver(why);
    return;
  }
  ++attempts;
  store->io_->Submit(this);
}

void ColdStore::Operation::Deliver(Result outcome) {
  result = outcome;
  took = std::chrono::steady_clock::now() - begun;
  store->completions_->Push(this);
}

void ColdStore::ReadOp::Complete(int64_t transferred) {
  if (transferred != static_cast<int64_t>(bytes)) {
    Retry(Result::kIoError, transferred < 0 ? static_cast<int>(-transferred) : 0);
  } else if (Crc32c(0, data, bytes) != expected_crc) {
    // Once more: the transfer may have been at fault rather than the disk.
    Retry(Result::kCorrupt, 0);
  } else {
    Deliver(Result::kOk);
  }
}

void ColdStore::WriteOp::Complete(int64_t transferred) {
  const bool describing = data == sector.data();
  if (transferred != static_cast<int64_t>(bytes)) {
    published_maybe = describing;
    Retry(Result::kIoError, transferred < 0 ? static_cast<int>(-transferred) : 0);
  } else if (describing) {
    Deliver(Result::kOk);
  } else {
    offset = cold_format::DescriptorOffset(record.value());
    data = sector.data();
    bytes = sector.size();
    attempts = 1;
    store->io_->Submit(this);
  }
}

void ColdStore::EraseOp::Complete(int64_t transferred) {
  if (transferred == static_cast<int64_t>(bytes)) {
    Deliver(Result::kOk);
  } else {
    Retry(Result::kIoError, transferred < 0 ? static_cast<int>(-transferred) : 0);
  }
}

ColdStore::ColdStore(ColdStoreOptions options, CompletionQueue* completions)
    : options_(std::move(options)), layout_(*options_.layout), completions_(completions) {}

ColdStore::~ColdStore() {
  io_owner_.reset();
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<std::unique_ptr<ColdStore>> ColdStore::Open(ColdStoreOptions options,
                                                           CompletionQueue* completions) {
  std::unique_ptr<ColdStore> store(new ColdStore(std::move(options), completions));
  const ColdStoreOptions& given = store->options_;
  STRATA_ASSIGN_OR_RETURN(
      cold_file::Opened opened,
      cold_file::OpenForUse(given.path, given.bytes_max, given.direct,
                            cold_file::MakeSuperblock(given.identity, given.formats,
                                                      store->layout_.bytes(), given.bytes_max)));
  store->fd_ = opened.fd;
  store->direct_ = opened.direct;
  store->note_ = std::move(opened.note);
  store->superblock_ = opened.superblock;
  store->group_crcs_.resize(size_t{opened.superblock.record_count} * store->layout_.groups());
  STRATA_ASSIGN_OR_RETURN(store->zero_sector_, AlignedBuffer::Allocate(kSectorBytes));
  STRATA_ASSIGN_OR_RETURN(store->io_owner_,
                          given.make_io(given.io_engine, store->fd_, given.io_depth));
  store->io_ = store->io_owner_.get();
  return store;
}

absl::Status ColdStore::Prepare(WriteOp* op) const {
  STRATA_ASSIGN_OR_RETURN(op->buffer, AlignedBuffer::Allocate(layout_.bytes()));
  STRATA_ASSIGN_OR_RETURN(op->sector, AlignedBuffer::Allocate(kSectorBytes));
  return absl::OkStatus();
}

void ColdStore::FillDescriptor(WriteOp* op) {
  auto* descriptor = new (op->sector.data()) Descriptor();
  descriptor->epoch = superblock_.epoch;
  descriptor->sequence_number = next_sequence_number_.fetch_add(1, std::memory_order_relaxed);
  descriptor->identity = superblock_.identity;
  descriptor->groups = static_cast<uint32_t>(layout_.groups());
  descriptor->tokens = kBlockTokens;
  descriptor->source = superblock_.warm;
  descriptor->kinds = superblock_.cold;
  for (int32_t i = 0; i < layout_.groups(); ++i) {
    const RecordLayout::Group& group = layout_.group(i);
    descriptor->group_crc[i] = Crc32c(0, op->buffer.data() + group.offset, group.bytes);
  }
  descriptor->crc = cold_file::SectorCrc(descriptor);
}

void ColdStore::Write(WriteOp* op) {
  STRATA_CHECK(op->record.value() < superblock_.record_count);
  op->Begin(this);
  op->published_maybe = false;
  FillDescriptor(op);
  op->write = true;
  op->offset = cold_format::RecordOffset(op->record.value(), superblock_.record_count,
                                         superblock_.record_bytes);
  op->data = op->buffer.data();
  op->bytes = layout_.bytes();
  io_->Submit(op);
}

void ColdStore::Publish(const WriteOp& op) {
  Descriptor descriptor;
  std::memcpy(&descriptor, op.sector.data(), sizeof(descriptor));
  std::copy_n(descriptor.group_crc.begin(), layout_.groups(),
              group_crcs_.begin() + static_cast<ptrdiff_t>(op.record.value()) * layout_.groups());
}

void ColdStore::Read(ReadOp* op, std::byte* target) {
  STRATA_CHECK(op->record.value() < superblock_.record_count);
  const RecordLayout::Group& group = layout_.group(op->group);
  op->Begin(this);
  op->expected_crc = group_crcs_[size_t{op->record.value()} * layout_.groups() + op->group];
  op->write = false;
  op->offset = cold_format::RecordOffset(op->record.value(), superblock_.record_count,
                                         superblock_.record_bytes) +
               group.offset;
  op->data = target;
  op->bytes = group.bytes;
  io_->Submit(op);
}

void ColdStore::Erase(EraseOp* op) {
  op->Begin(this);
  op->write = true;
  op->offset = cold_format::DescriptorOffset(op->record.value());
  op->data = zero_sector_.data();
  op->bytes = zero_sector_.size();
  io_->Submit(op);
}

}  // namespace strata
