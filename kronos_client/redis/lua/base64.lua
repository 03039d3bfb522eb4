-- A text in base64. Its length must be divisible by 3.
local digits = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'
local function base64(text)
    return (string.gsub(text, '...', function(three)
        local high, middle, low = string.byte(three, 1, 3)
        local bits, encoded = high * 65536 + middle * 256 + low, ''
        for _ = 1, 4 do
            encoded = string.sub(digits, bits % 64 + 1, bits % 64 + 1) .. encoded
            bits = math.floor(bits / 64)
        end
        return encoded
    end))
end
