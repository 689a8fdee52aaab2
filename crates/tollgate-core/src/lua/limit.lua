-- Twin of limit.rs.
--
-- A limit is a list of the five numbers that define it, with its `algorithm`.
--
-- The state of a counter is one string in MessagePack, which is small and quick to read: the
-- format's version and the algorithm's letter (`1t`), then four words: the numbers of the limit it
-- was written under that give the counters their meaning (those that counts_like compares, from
-- `first_kept` on), and the counters; then, of a bucket that has some, the leases (leases.lua), which
-- travel with the limit, as `leases`. Anything else under the key, be it another algorithm's, of
-- another type or no numbers at all, counts as a key never seen, and stays until something is charged.
--
-- So does a state of another version, and is overwritten. Therefore a version that others cannot
-- read must have keys of its own: then neither sees or destroys what the other counts, and until the
-- last node is changed each of the two admits its limit. What all versions of format 1 agree on is
-- held by the frozen scripts of tests/it/v1.
local ALGORITHMS =
  { sliding_window, token_bucket, leaky_bucket, fixed_window, sliding_log, concurrency }

-- An algorithm with the functions that are rarely asked for.
local function whole(algorithm)
  if not algorithm.refund and not algorithm.renew then algorithm.more(algorithm) end
  return algorithm
end

-- Whether these are as leases.lua says, and of an algorithm that has some.
local function are_leases(numbers)
  if not leases_of or #numbers % 3 ~= 0 then return false end
  for i = 1, #numbers do
    if not is_whole(numbers[i], 0) then return false end
  end
  return true
end

-- The state of a counter as it was written, the limit it was written under, and its text.
local function stored_state(limit, key)
  local text = replied(redis.pcall('GET', key))
  local algorithm = limit.algorithm
  if not text or string.sub(text, 2, 3) ~= algorithm.header then return { 0, 0, 0 }, limit end
  local first = algorithm.first_kept
  local is_read, _, a, b, c, d, has_leases = pcall(cmsgpack.unpack, text)
  -- What is divided by is not zero: of a bucket the first two, of a window the first.
  local least = first == 1 and 1 or 0
  if not (is_read and is_whole(a, 1) and is_whole(b, least) and is_whole(c, 0) and is_whole(d, 0))
  then
    return { 0, 0, 0 }, limit
  end
  local state, is_alike, written_under = { b, c, d }, a == limit[first], limit
  if algorithm.counters == 2 then
    state, is_alike = { c, d }, is_alike and b == limit[first + 1]
  end
  if not is_alike then
    written_under = { limit[1], limit[2], limit[3], limit[4], limit[5], algorithm = algorithm }
    written_under[first] = a
    if algorithm.counters == 2 then written_under[first + 1] = b end
  end
  if has_leases then
    local leases = { select(6, cmsgpack.unpack(text)) }
    if not are_leases(leases) then return { 0, 0, 0 }, limit end
    local _, settled = leases_of(whole(algorithm))
    state = settled(written_under, state, leases, NOW)
    if #leases > 0 then limit.leases, written_under.leases = leases, leases end
  end
  return state, written_under, text
end

-- The state of a key, carried over to this limit, the text it was read from, and whether it was
-- written under another. Its time is to be brought back, if it is too far ahead, before anything is
-- decided.
local function load_state(limit, key, now)
  local algorithm = limit.algorithm
  if algorithm.is_log then return algorithm.standing(limit, key, now) end
  local state, written_under, text = stored_state(limit, key)
  if written_under ~= limit then
    local used, moment = whole(algorithm).used(written_under, state, now)
    state = { 0, 0, 0 }
    if used ~= 0 then
      state = algorithm.anchored(limit, algorithm.with_used(limit, used, moment), now)
    end
    -- More may be out than the other quota could count.
    if limit.leases then
      local _, settled = leases_of(algorithm)
      state = settled(limit, state, limit.leases, now)
    end
    return state, text, true
  end
  return state, text
end

-- Writes what changed since `text_before` was read: a charge, a time brought back. What is whole
-- again after `reset_after` is vacant then.
local function save_state(limit, key, state, text_before, reset_after)
  local algorithm, leases = limit.algorithm, limit.leases
  if algorithm.is_log then return algorithm.apply(limit, state) end
  local header, first = algorithm.header, algorithm.first_kept
  local a, b, c, text = state[1], state[2], state[3], nil
  if leases then
    c = 0
    text = cmsgpack.pack(header, limit[first], limit[first + 1], a, b, unpack(leases))
    -- What is out becomes debt when its lease ends, at the latest.
    reset_after = plus(reset_after, LEASE_MICROS)
  elseif algorithm.counters == 2 then
    c = 0
    text = cmsgpack.pack(header, limit[first], limit[first + 1], a, b)
  else
    text = cmsgpack.pack(header, limit[first], a, b, c)
  end
  if text == text_before then return end
  if a == 0 and b == 0 and c == 0 and not leases then
    if text_before then redis.call('UNLINK', key) end
  elseif IS_VIRTUAL then
    redis.call('SET', key, text)
  else
    redis.call('SET', key, text, 'PX', ttl_millis(reset_after))
  end
end
