-- Brings one charge to what was really used, and tells what its limit says then. What was used less
-- is given back, as far as time has not done so; what was used more is charged, past the end if need
-- be.
--
-- KEYS[1]   the state that the charge was made to
-- ARGV[1]   now in microseconds, or '' to read this server's clock (production always does)
-- ARGV[2]   thirteen values in MessagePack: algorithm (see prelude.lua), units to give back, units to
--           charge; of a counter the moment of the charge, and the debt before what is given back of
--           it; of a log the charge's id, an id for what is charged, and the units the charge holds;
--           then five numbers that define the limit it was charged under
-- Returns   ten values as take.lua has them for a peek; none if another algorithm has started afresh
--           there, which knows nothing of the charge and is left alone
--
-- Running it twice would charge twice: a call that may have run is not sent again.
local key = KEYS[1]
local number, back, more, charged_at, debt_before, id, more_id, held, a, b, c, d, e =
  cmsgpack.unpack(ARGV[2])
local algorithm = whole(ALGORITHMS[number])
local limit = { a, b, c, d, e, algorithm = algorithm }

if algorithm.is_log then
  local under, is_taken = algorithm.written_under(limit, key)
  if is_taken then return {} end
  under = under or limit
  if back > 0 then algorithm.give_back(under, key, NOW, id, held, back) end
  local state = algorithm.standing(under, key, NOW)
  if more > 0 then
    local _, after = algorithm.force(under, state, NOW, more, more_id)
    algorithm.apply(under, after)
    state = algorithm.standing(under, key, NOW)
  end
  -- One result of the two that there are.
  local answer = algorithm.decide(under, state, NOW, 0)
  return answer
end

local text = redis.pcall('GET', key)
if is_of_another(text) then return {} end
if text and string.sub(text, 2, 3) ~= algorithm.header then return {} end
local state, written_under = stored_state(limit, key)
if back > 0 then
  -- What a bucket owed before, in ticks of another quota, says nothing here.
  if written_under ~= limit then debt_before = 0 end
  state = algorithm.refund(written_under, state, NOW, back, charged_at, debt_before)
else
  local _, after =
    algorithm.force(written_under, algorithm.anchored(written_under, state, NOW), NOW, more)
  state = after
end
local answer = algorithm.decide(written_under, state, NOW, 0)
save_state(written_under, key, state, text, answer[RESET_AFTER])
if written_under ~= limit then
  state = algorithm.anchored(limit, load_state(limit, key, NOW), NOW)
  answer = algorithm.decide(limit, state, NOW, 0)
end
answer[CHARGED], answer[CHARGED_AT], answer[DEBT_BEFORE] = 0, 0, 0
return answer
